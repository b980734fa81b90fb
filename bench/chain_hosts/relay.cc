#include "relay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/strings.h"
#include "control/rendezvous.h"

namespace ckpt::bench {
namespace {

/// Of one call of the kernel.
constexpr std::uint64_t kUnit = 256 << 10;

Result<sockaddr_in> address_of(const std::string& text) {
  CKPT_ASSIGN_OR_RETURN(const HostPort parsed, parse_host_port(text));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(parsed.port));
  if (::inet_pton(AF_INET, parsed.host.c_str(), &address.sin_addr) == 1) return address;
  return invalid_argument(concat(quoted(parsed.host), " is no IPv4 address"));
}

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Result<sockaddr_in> name_of(int socket) {
  sockaddr_in name{};
  socklen_t length = sizeof(name);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) == 0) return name;
  return errno_error("a socket has no name", errno);
}

/// A listening socket on the interface that leads to `near`.
Result<UniqueFd> listen_towards(const std::string& near) {
  CKPT_ASSIGN_OR_RETURN(const sockaddr_in there, address_of(near));
  const UniqueFd probe(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), generic(there), sizeof(there)) != 0) {
    return errno_error(concat("no way to ", near), errno);
  }
  CKPT_ASSIGN_OR_RETURN(sockaddr_in mine, name_of(probe.get()));
  mine.sin_port = 0;
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), generic(mine), sizeof(mine)) != 0 ||
      ::listen(listener.get(), 1) != 0) {
    return errno_error("cannot listen", errno);
  }
  return listener;
}

Status make_nonblocking(int socket) {
  if (::fcntl(socket, F_SETFL, O_NONBLOCK) == 0) return Status::ok();
  return errno_error("cannot set up a socket", errno);
}

bool must_wait() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Result<Relay> Relay::connect(int rank, const std::string& near, const Exchange& exchange,
                             Deadline deadline) {
  CKPT_ASSIGN_OR_RETURN(const UniqueFd listener, listen_towards(near));
  CKPT_ASSIGN_OR_RETURN(const sockaddr_in mine, name_of(listener.get()));
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &mine.sin_addr, text.data(), text.size());
  CKPT_ASSIGN_OR_RETURN(const auto all, exchange(concat(text.data(), ":", ntohs(mine.sin_port))));
  CKPT_ASSIGN_OR_RETURN(const sockaddr_in next,
                        address_of(all[(static_cast<std::size_t>(rank) + 1) % all.size()]));
  Relay relay;
  relay.to_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(relay.to_.get(), generic(next), sizeof(next)) != 0) {
    return errno_error("cannot reach the next host", errno);
  }
  CKPT_ASSIGN_OR_RETURN(const bool there, wait_readable(listener.get(), deadline));
  if (!there) return deadline_exceeded("the host before has not connected");
  relay.from_ = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!relay.from_) return errno_error("cannot accept the host before", errno);
  CKPT_RETURN_IF_ERROR(make_nonblocking(relay.to_.get()));
  CKPT_RETURN_IF_ERROR(make_nonblocking(relay.from_.get()));
  relay.own_.resize(kUnit);
  return relay;
}

Status Relay::receive(std::uint64_t bytes) {
  const ssize_t n =
      ::recv(from_.get(), received_.data() + in_, std::min(kUnit, bytes - in_), MSG_DONTWAIT);
  if (n == 0) return unavailable("the host before has hung up");
  if (n < 0) return must_wait() ? Status::ok() : errno_error("cannot receive", errno);
  in_ += static_cast<std::uint64_t>(n);
  return Status::ok();
}

Status Relay::send(const Share& share) {
  const bool own = out_ < share.own;
  const std::uint64_t ready = (own ? share.own : std::min(share.own + in_, share.out)) - out_;
  const std::byte* from = own ? own_.data() : received_.data() + (out_ - share.own);
  const ssize_t n = ::send(to_.get(), from, std::min(kUnit, ready), MSG_NOSIGNAL);
  if (n < 0) return must_wait() ? Status::ok() : errno_error("cannot send", errno);
  out_ += static_cast<std::uint64_t>(n);
  return Status::ok();
}

Status Relay::run(const Share& share, Deadline deadline) {
  received_.resize(share.in);
  in_ = out_ = 0;
  while (in_ < share.in || out_ < share.out) {
    const bool can_send = out_ < std::min(share.own + in_, share.out);
    std::array<pollfd, 2> ends{pollfd{in_ < share.in ? from_.get() : -1, POLLIN, 0},
                               pollfd{can_send ? to_.get() : -1, POLLOUT, 0}};
    if (::poll(ends.data(), ends.size(), deadline.poll_ms()) == 0) {
      return deadline_exceeded(concat("the relay has received ", in_, " of ", share.in,
                                      " bytes and sent ", out_, " of ", share.out));
    }
    if (ends[0].revents != 0) CKPT_RETURN_IF_ERROR(receive(share.in));
    if (ends[1].revents != 0) CKPT_RETURN_IF_ERROR(send(share));
  }
  return Status::ok();
}

}  // namespace ckpt::bench
