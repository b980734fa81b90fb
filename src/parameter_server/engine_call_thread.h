// The thread in which an engine is told to update.
#pragma once

#include <memory>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/parameter_server.h"

namespace ckpt {

/// Runs one EngineCall. The call's context is cancelled when `abort` is raised.
class EngineCallThread {
 public:
  /// `returned` runs on the thread when the call has returned, with its outcome.
  static std::unique_ptr<EngineCallThread> start(EngineCall call,
                                                 std::vector<WorkerAddress> all_ranks, int rank,
                                                 Deadline deadline,
                                                 std::shared_ptr<AbortSignal> abort,
                                                 std::function<void(const Status&)> returned);
  /// Cancels and waits a few seconds; a call that ignores its cancellation is left behind, with a
  /// line in the log.
  ~EngineCallThread();

 private:
  struct Shared;
  EngineCallThread() = default;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ckpt
