// Finding out where a hub listens, before ZeroMQ (which never says why it cannot connect) is told
// to go there.
#pragma once

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "control/rendezvous.h"

namespace ckpt::control {

/// Resolves `address` and connects once, trying every address of the name again and again until one
/// accepts, the deadline passes or `abort` is raised (its cause). The result has a literal host.
/// kUnavailable says why the last attempt failed.
Result<HostPort> wait_for_listener(const HostPort& address, Deadline deadline,
                                   const AbortSignal& abort);

}  // namespace ckpt::control
