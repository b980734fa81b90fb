// Sets a stock worker free whose rank was killed: it would wait for its next message for ever.
#pragma once

#include <string>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Listens on the dead rank's channel address and sends the worker that connects again an exception
/// with `cause`, so that its engine's call fails. Does not wait: a closer (closer.h) does it, and
/// ends when the worker has gone, 5 s without a connection have passed, or at `deadline`. Any
/// process of the host can do it, and waits for it before it ends (wait_for_closers of `job`).
/// kAlreadyExists when the address is still held: its rank lives, or another process came first.
Status rescue_worker(const std::string& job, const std::string& address, int rank,
                     const Status& cause, Deadline deadline);

}  // namespace ckpt
