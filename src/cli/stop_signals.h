// SIGINT, SIGTERM and SIGHUP as something that poll(2) can wait for.
#pragma once

#include <signal.h>

#include <optional>

#include "base/fd.h"

namespace ckpt {

/// Blocks the three signals in this thread, and so in all threads made later; the destructor undoes
/// that. Make it before any thread.
class StopSignals {
 public:
  /// With `children`, SIGCHLD too.
  explicit StopSignals(bool children = false);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  struct Signal {
    int number;
    /// Sent by the terminal to the whole process group: our children have it already.
    bool from_terminal;
  };

  int fd() const { return fd_.get(); }
  /// The next signal that has arrived; does not wait.
  std::optional<Signal> take();
  /// The mask from before: what a child is to start with.
  const sigset_t& mask_before() const { return before_; }

 private:
  sigset_t before_;
  UniqueFd fd_;
};

/// Ends this process by `signal`, as if nobody had caught it.
[[noreturn]] void die_by_signal(int signal);

}  // namespace ckpt
