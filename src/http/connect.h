// Connections to an endpoint that end in time, or when the update does.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "http/endpoint.h"

namespace ckpt {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

/// The addresses of a host, in the order in which to try them; may take as long as it likes. Any
/// thread.
using HostLookup =
    std::function<Result<std::vector<SocketAddress>>(const std::string& host, int port)>;
/// The system's.
Result<std::vector<SocketAddress>> look_up_host(const std::string& host, int port);

/// A connected, blocking, close-on-exec socket. Tries every address of the host's name, each for
/// its share of the time. Ends at the deadline (kDeadlineExceeded) and when `abort` is raised (its
/// cause), also while the name is looked up. kUnavailable when nobody listens.
Result<UniqueFd> connect_endpoint(const Endpoint& endpoint, Deadline deadline,
                                  const AbortSignal& abort,
                                  const HostLookup& lookup = look_up_host);

}  // namespace ckpt
