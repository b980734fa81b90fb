#include "http/endpoint.h"

#include <arpa/inet.h>
#include <strings.h>
#include <sys/un.h>

#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

Status refused(std::string_view text, std::string_view reason) {
  return invalid_argument(concat("endpoint ", quoted(text), ": ", reason));
}

/// Cuts "host:port", "[v6]:port" or "host" into its halves; no port leaves `port` empty.
Status split_host(std::string_view text, std::string_view& host, std::string_view& port) {
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) return invalid_argument("'[' without ']'");
    host = text.substr(1, end - 1);
    const auto rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return invalid_argument("text behind ']'");
    port = rest.empty() ? rest : rest.substr(1);
    return Status::ok();
  }
  const auto colon = text.find(':');
  if (colon != text.rfind(':')) {
    return invalid_argument("an IPv6 address is written in brackets: http://[::1]:8000");
  }
  host = text.substr(0, colon);
  port = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  return Status::ok();
}

}  // namespace

std::string Endpoint::host_header() const {
  if (!socket_path.empty()) return "localhost";
  if (host.find(':') != std::string::npos) return concat("[", host, "]:", port);
  return concat(host, ":", port);
}

std::string Endpoint::to_string() const {
  if (!socket_path.empty()) return concat("unix:", socket_path, base_path);
  return concat("http://", host_header(), base_path);
}

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  constexpr std::string_view kHttp = "http://", kUnix = "unix:";
  if (text.starts_with(kUnix)) return unix_endpoint(text.substr(kUnix.size()));
  // A scheme may be written in either case.
  const bool is_url =
      text.size() >= kHttp.size() && ::strncasecmp(text.data(), kHttp.data(), kHttp.size()) == 0;
  auto rest = is_url ? text.substr(kHttp.size()) : text;
  if (rest.find("://") != std::string_view::npos) {
    return refused(text, "only http:// is spoken; write http://HOST:PORT or unix:PATH");
  }
  if (rest.find_first_of("?#@ ") != std::string_view::npos) {
    return refused(text, "has a query, a fragment, credentials or a space; write http://HOST:PORT");
  }
  Endpoint endpoint;
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    endpoint.base_path = rest.substr(slash);
    while (endpoint.base_path.ends_with('/')) endpoint.base_path.pop_back();
    rest = rest.substr(0, slash);
  }
  std::string_view host, port;
  if (const Status halves = split_host(rest, host, port); !halves) {
    return refused(text, halves.message());
  }
  if (host.empty()) return refused(text, "names no host");
  if (port.empty() && !is_url) return refused(text, "names no port; write HOST:PORT");
  endpoint.host = host;
  endpoint.port = 80;
  if (!port.empty()) {
    const auto number = parse_int(port);
    if (!number || *number < 1 || *number > 65535) {
      return refused(text, "the port must be a number from 1 to 65535");
    }
    endpoint.port = static_cast<int>(*number);
  }
  return endpoint;
}

Result<Endpoint> unix_endpoint(std::string_view path) {
  if (path.empty()) return invalid_argument("the path of a Unix socket is empty");
  if (path.size() > kMaxSocketPath) {
    return invalid_argument(concat("the path of the Unix socket ", quoted(path), " has ",
                                   path.size(), " bytes; the system allows ", kMaxSocketPath));
  }
  Endpoint endpoint;
  endpoint.socket_path = path;
  return endpoint;
}

}  // namespace ckpt
