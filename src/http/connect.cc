#include "http/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "base/strings.h"

namespace ckpt {
namespace {

Status not_connected(const Endpoint& endpoint, int error) {
  return unavailable(concat("cannot connect to the engine at ", endpoint.to_string(), ": ",
                            std::strerror(error),
                            "; is it running, and is its address the one given?"));
}

Status connect_address(const Endpoint& endpoint, int fd, const sockaddr* address, socklen_t length,
                       Deadline deadline, const AbortSignal& abort) {
  if (::connect(fd, address, length) == 0) return Status::ok();
  // A Unix socket whose backlog is full says EAGAIN: nothing is under way, so it is no connection.
  if (errno != EINPROGRESS && errno != EINTR) return not_connected(endpoint, errno);
  for (;;) {
    pollfd waits[] = {{fd, POLLOUT, 0}, {abort.fd(), POLLIN, 0}};
    const int ready = ::poll(waits, 2, deadline.poll_ms());
    if (abort.raised()) return abort.cause();
    if (ready < 0 && errno != EINTR) return errno_error("poll", errno);
    if (waits[0].revents != 0 && ready > 0) break;
    if (deadline.expired()) {
      return deadline_exceeded(concat("the engine at ", endpoint.to_string(),
                                      " does not take the connection; is the host up, and does a "
                                      "firewall drop it?"));
    }
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? Status::ok() : not_connected(endpoint, error);
}

Result<UniqueFd> connect_new(const Endpoint& endpoint, int family, const sockaddr* address,
                             socklen_t length, Deadline deadline, const AbortSignal& abort) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  CKPT_RETURN_IF_ERROR(connect_address(endpoint, fd.get(), address, length, deadline, abort));
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return fd;
}

Result<UniqueFd> connect_unix(const Endpoint& endpoint, Deadline deadline,
                              const AbortSignal& abort) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // parse_endpoint and unix_endpoint have checked the length.
  std::memcpy(address.sun_path, endpoint.socket_path.data(), endpoint.socket_path.size());
  return connect_new(endpoint, AF_UNIX, reinterpret_cast<const sockaddr*>(&address),
                     sizeof(address), deadline, abort);
}

Result<UniqueFd> connect_tcp(const Endpoint& endpoint, Deadline deadline,
                             const AbortSignal& abort) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    return unavailable(concat("cannot look up the host of the engine at ", endpoint.to_string(),
                              ": ", ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  Status last;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    auto fd =
        connect_new(endpoint, each->ai_family, each->ai_addr, each->ai_addrlen, deadline, abort);
    if (fd) {
      const int on = 1;
      ::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return fd;
    }
    last = fd.status();
    if (abort.raised() || deadline.expired()) break;
  }
  return last;
}

}  // namespace

Result<UniqueFd> connect_endpoint(const Endpoint& endpoint, Deadline deadline,
                                  const AbortSignal& abort) {
  if (abort.raised()) return abort.cause();
  return endpoint.socket_path.empty() ? connect_tcp(endpoint, deadline, abort)
                                      : connect_unix(endpoint, deadline, abort);
}

}  // namespace ckpt
