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
  std::shared_ptr<void> ring;  ///< dropped when nobody can be reading it, or at the deadline
  /// Freeing memory of a GPU under a worker that reads it is undefined, unlike that of the host:
  /// then the deadline cuts nothing, and the ring stays until the worker itself closes its
  /// connection, or its process ends. That it does not answer any more says nothing.
  bool ring_on_gpu = false;
  Deadline deadline = Deadline::after_seconds(0);
  double late_worker_seconds = 5;  ///< for who has not connected yet, or was cut
};

/// Drives `channel` to its end on a thread of its own: until everybody who was connected has gone
/// or has been told. A worker that was stopped is waited for as long as its process lives, since it
/// has to be told when it goes on; what else bounds it, docs/wire-stock.md says. Any thread.
void hand_to_closer(ClosingChannel channel);

/// Waits until no closer holds a ring of this rank: before its next ring is allocated. Any thread.
Status wait_for_rings(std::string_view job, int rank, Deadline deadline, AbortSignal& abort);

/// Waits for all closers of `job` in this process (empty: of all jobs): a process that ends before
/// them leaves workers waiting. The closers go on when the deadline has passed. Any thread.
Status wait_for_closers(std::string_view job, Deadline deadline);

}  // namespace ckpt
