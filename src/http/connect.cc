#include "http/connect.h"

#include <arpa/inet.h>
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
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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

using Addresses = Result<std::vector<SocketAddress>>;

/// A look-up that its caller may leave: the system's cannot be cut short.
struct Lookup {
  EventFd done;
  std::mutex mutex;
  std::optional<Addresses> found;
};

bool is_literal(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

Addresses addresses_of(const Endpoint& endpoint, Deadline deadline, const AbortSignal& abort,
                       const HostLookup& lookup) {
  if (is_literal(endpoint.host)) return lookup(endpoint.host, endpoint.port);
  const auto shared = std::make_shared<Lookup>();
  std::thread([shared, lookup, host = endpoint.host, port = endpoint.port] {
    auto found = lookup(host, port);
    const std::lock_guard lock(shared->mutex);
    shared->found = std::move(found);
    shared->done.set();
  }).detach();
  pollfd waits[] = {{shared->done.fd(), POLLIN, 0}, {abort.fd(), POLLIN, 0}};
  while (!abort.raised() && !deadline.expired() && waits[0].revents == 0) {
    if (::poll(waits, 2, deadline.poll_ms()) < 0 && errno != EINTR)
      return errno_error("poll", errno);
  }
  if (abort.raised()) return abort.cause();
  const std::lock_guard lock(shared->mutex);
  if (shared->found) {
    return shared->found->is_ok()
               ? std::move(*shared->found)
               : Addresses(shared->found->status().with_context(
                     concat("cannot look up the host of the engine at ", endpoint.to_string())));
  }
  return deadline_exceeded(concat("the name of the engine at ", endpoint.to_string(),
                                  " is not looked up in time; does the resolver answer?"));
}

Result<UniqueFd> connect_tcp(const Endpoint& endpoint, Deadline deadline, const AbortSignal& abort,
                             const HostLookup& lookup) {
  CKPT_ASSIGN_OR_RETURN(const auto addresses, addresses_of(endpoint, deadline, abort, lookup));
  Status last = not_connected(endpoint, EADDRNOTAVAIL);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto left = static_cast<int>(addresses.size() - i);
    const Deadline share = Deadline::after(deadline.remaining() / left);
    const auto* address = reinterpret_cast<const sockaddr*>(&addresses[i].storage);
    auto fd = connect_new(endpoint, address->sa_family, address, addresses[i].length,
                          left == 1 ? deadline : share, abort);
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

Result<std::vector<SocketAddress>> look_up_host(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return unavailable(::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return addresses;
}

Result<UniqueFd> connect_endpoint(const Endpoint& endpoint, Deadline deadline,
                                  const AbortSignal& abort, const HostLookup& lookup) {
  if (abort.raised()) return abort.cause();
  return endpoint.socket_path.empty() ? connect_tcp(endpoint, deadline, abort, lookup)
                                      : connect_unix(endpoint, deadline, abort);
}

}  // namespace ckpt
