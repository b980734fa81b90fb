// What is left of a channel after an abort: a thread that tells the worker, and waits until it has
// let go of the ring.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "worker/wire.h"

namespace ckpt {

struct ClosingChannel {
  std::string job;
  int rank = 0;
  std::vector<std::unique_ptr<WorkerWire>> wires;  ///< start_abort() has been called
  std::shared_ptr<void> ring;  ///< dropped when no worker is connected, or at the deadline
  /// Freeing memory of a GPU under a worker that reads it is undefined, unlike that of the host:
  /// then the deadline cuts nothing, and the ring stays until the worker's connection or process
  /// ends.
  bool ring_on_gpu = false;
  Deadline deadline = Deadline::after_seconds(0);
  double late_worker_seconds = 5;  ///< ends so long after nobody was connected any more
};

/// Drives `channel` to its end on a thread of its own. Any thread.
void hand_to_closer(ClosingChannel channel);

/// Waits until no closer holds a ring of this rank: before its next ring is allocated. Any thread.
Status wait_for_rings(std::string_view job, int rank, Deadline deadline, AbortSignal& abort);

/// Waits for all closers of `job` in this process (empty: of all jobs): a process that ends before
/// them leaves workers waiting. Any thread.
Status wait_for_closers(std::string_view job, Deadline deadline);

}  // namespace ckpt
