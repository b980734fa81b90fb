// A worker that has stopped answering although its process lives: stopped by a signal, a debugger,
// `docker pause`. Nobody knows whether it will go on, and it may be in the middle of reading.
#pragma once

#include <cstdint>
#include <optional>

#include "base/deadline.h"
#include "base/fd.h"

namespace ckpt {

/// True when the other side of a Unix socket has been closed: by the program, or by the kernel
/// when its process ended. One that is stopped closes nothing.
bool closed_by_peer(const UniqueFd& connection);

/// One thread uses it.
class LostWorker {
 public:
  /// `connection`: our end, which is read no more; should the worker go on, it sees there that its
  /// rank has left. `seconds_to_return`: how long it may take then to leave the ring, or to connect
  /// again.
  LostWorker(std::int64_t pid, UniqueFd connection, double seconds_to_return);

  std::int64_t pid() const { return pid_; }
  /// True until its process has ended, or it has closed its end of the connection and has had its
  /// time since. Does not wait.
  bool may_go_on();

 private:
  std::int64_t pid_;
  UniqueFd connection_, process_;
  double seconds_to_return_;
  std::optional<Deadline> returns_;
};

}  // namespace ckpt
