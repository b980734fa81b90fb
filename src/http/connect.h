// Connections to an endpoint that end in time, or when the update does.
#pragma once

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "http/endpoint.h"

namespace ckpt {

/// A connected, blocking, close-on-exec socket. Tries every address of the host's name. Ends at the
/// deadline (kDeadlineExceeded) and when `abort` is raised (its cause); a name is looked up by the
/// system, which neither of them can cut short. kUnavailable when nobody listens.
Result<UniqueFd> connect_endpoint(const Endpoint& endpoint, Deadline deadline,
                                  const AbortSignal& abort);

}  // namespace ckpt
