// Where an inference engine listens: a TCP port or a Unix socket.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

struct Endpoint {
  std::string host;  ///< name or literal, an IPv6 literal without brackets; unused with a socket
  int port = 0;
  std::string socket_path;  ///< of a Unix socket; empty: TCP
  std::string base_path;    ///< put before every path: "" or "/prefix"

  /// "http://127.0.0.1:8000", "http://[::1]:8000/prefix", "unix:/run/engine.sock".
  std::string to_string() const;
  /// Value of the Host header: "127.0.0.1:8000", "[::1]:8000", "localhost" for a socket.
  std::string host_header() const;
  bool operator==(const Endpoint&) const = default;
};

/// Whether a host is this machine by its writing: localhost, ::1, 127.0.0.0/8.
bool is_loopback(const std::string& host);

/// "http://HOST[:PORT][/PREFIX]", "HOST:PORT" or "unix:PATH"; an IPv6 literal stands in brackets.
/// Refused with what to write instead: https, credentials, a query, a port outside 1..65535.
Result<Endpoint> parse_endpoint(std::string_view text);

/// A Unix socket. Refuses paths that do not fit into sockaddr_un (107 bytes).
Result<Endpoint> unix_endpoint(std::string_view path);

}  // namespace ckpt
