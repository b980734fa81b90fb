// Several ranks of this program on this host: started together, ended together.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "cli/stop_signals.h"

namespace ckpt {

struct LaunchOptions {
  /// Program and arguments of every rank; argv[0] is a path.
  std::vector<std::string> argv;
  int ranks = 1;
  /// "NAME=value", beside RANK, WORLD_SIZE and LOCAL_RANK, which each rank gets.
  std::vector<std::string> environment;
  /// How long the others may go on after the first failure, so that they can say what they know of
  /// it; then SIGTERM, and after as long again SIGKILL.
  double grace_seconds = 10;
};

/// Runs all ranks and returns when every one has ended: 0, or the exit code of the first that
/// failed (128 + n for signal n; the lowest of those that ended between two looks). Rank 0 has our
/// stdin, stdout and stderr; lines of the others come on stderr with "rank N: " before them.
/// SIGINT, SIGTERM and SIGHUP are forwarded; the result is then 128 + n, unless a rank had failed
/// before. No rank outlives this process. An error when a rank cannot be started; those that were
/// are ended. `signals` must include SIGCHLD. On the thread that lives longest: the kernel ends the
/// ranks with it.
Result<int> launch_ranks(const LaunchOptions& options, StopSignals& signals);

}  // namespace ckpt
