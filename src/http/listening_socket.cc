#include "http/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/strings.h"
#include "http/connect.h"

namespace ckpt {
namespace {

constexpr int kBacklog = 128;
constexpr int kSocketType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

/// A socket file that nobody serves any more is in the way of bind; one that is served is not ours.
Status remove_stale_socket(const Endpoint& endpoint) {
  const std::string& path = endpoint.socket_path;
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Status::ok();
  if (!S_ISSOCK(info.st_mode)) {
    return already_exists(concat(path, ": is there, and is no socket; give another path"));
  }
  const AbortSignal never;
  if (connect_endpoint(endpoint, Deadline::after_seconds(1), never)) {
    return unavailable(concat(path, ": another process serves this socket"));
  }
  return ::unlink(path.c_str()) == 0 ? Status::ok() : errno_error(path, errno);
}

/// 0 or the error.
int bind_and_listen(int fd, const sockaddr* address, socklen_t length) {
  if (::bind(fd, address, length) != 0 || ::listen(fd, kBacklog) != 0) return errno;
  return 0;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

Result<ListeningSocket> listen_tcp(const std::string& host, int port) {
  ListeningSocket socket;
  socket.endpoint.host = host;
  socket.endpoint.port = port;
  const std::string what = concat("cannot listen on ", socket.endpoint.host_header());
  const auto addresses = look_up_host(host, port);
  if (!addresses) return addresses.status().with_context(what);
  int error = EADDRNOTAVAIL;
  for (const SocketAddress& address : *addresses) {
    socket.fd.reset(::socket(address.storage.ss_family, kSocketType, 0));
    if (!socket.fd) return errno_error("socket", errno);
    const int on = 1;
    ::setsockopt(socket.fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    error = bind_and_listen(socket.fd.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                            address.length);
    if (error != 0) continue;
    socket.endpoint.port = port_of(socket.fd.get());
    return socket;
  }
  return unavailable(concat(what, ": ", std::strerror(error),
                            "; is the port taken, or the address not of this host?"));
}

Result<ListeningSocket> listen_unix(const std::string& path) {
  ListeningSocket socket;
  CKPT_ASSIGN_OR_RETURN(socket.endpoint, unix_endpoint(path));
  CKPT_RETURN_IF_ERROR(remove_stale_socket(socket.endpoint));
  socket.fd.reset(::socket(AF_UNIX, kSocketType, 0));
  if (!socket.fd) return errno_error("socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const mode_t before = ::umask(0177);
  const int error = bind_and_listen(socket.fd.get(), reinterpret_cast<const sockaddr*>(&address),
                                    sizeof(address));
  ::umask(before);
  if (error == 0) return socket;
  return unavailable(concat("cannot listen on the Unix socket ", path, ": ", std::strerror(error),
                            "; does its folder exist, and may we write there?"));
}

}  // namespace ckpt
