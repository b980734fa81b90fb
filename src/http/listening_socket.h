// Listening sockets of a server: a TCP port or a Unix socket.
#pragma once

#include <string>

#include "base/fd.h"
#include "checkpoint_engine/status.h"
#include "http/endpoint.h"

namespace ckpt {

struct ListeningSocket {
  UniqueFd fd;  ///< non-blocking
  Endpoint endpoint;
};

/// Port 0: the kernel chooses; the endpoint has the real one. kUnavailable when the address is
/// taken, or is none of this host.
Result<ListeningSocket> listen_tcp(const std::string& host, int port);

/// With mode 0600. A socket file that nobody serves any more is replaced; one that is served is
/// kUnavailable, a file that is no socket kAlreadyExists.
Result<ListeningSocket> listen_unix(const std::string& path);

}  // namespace ckpt
