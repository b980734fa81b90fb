// One rank as a child process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Ended with SIGKILL by the destructor if it still runs, and by the kernel when we die.
class RankProcess {
 public:
  /// `capture`: stdout and stderr come through output_fd(), stdin is /dev/null. `mask` is the
  /// child's signal mask.
  static Result<RankProcess> start(int rank, const std::vector<std::string>& argv,
                                   const std::vector<std::string>& environment, bool capture,
                                   const sigset_t& mask);
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess();

  int rank() const { return rank_; }
  bool running() const { return pid_ > 0; }
  void send_signal(int signal);
  /// The exit code (128 + n for signal n) when it has ended since the last call.
  std::optional<int> reap();

  /// -1 when not captured, or closed.
  int output_fd() const { return output_.get(); }
  /// Passes on what is there, whole lines with the rank's number before them. Call when readable,
  /// and once more after the end.
  void forward_output();

 private:
  RankProcess(int rank, pid_t pid, UniqueFd output);
  void print_line(std::string_view line) const;

  int rank_;
  pid_t pid_;
  UniqueFd output_;
  std::string partial_;
};

}  // namespace ckpt
