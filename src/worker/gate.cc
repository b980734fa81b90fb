#include "worker/gate.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/log.h"
#include "base/strings.h"
#include "worker/channel_address.h"

namespace ckpt {
namespace {

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<AbstractAddress> parse(const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(const std::string name, abstract_name(address));
  AbstractAddress result;
  result.address.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract; it ends by the length, not by a zero.
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

Result<UniqueFd> unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  return fd;
}

}  // namespace

Result<PeerProcess> peer_of(int fd) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return errno_error("SO_PEERCRED", errno);
  }
  return PeerProcess{credentials.pid, credentials.uid};
}

Result<Gate> Gate::open(const std::string& address) {
  Gate gate(address);
  CKPT_RETURN_IF_ERROR(gate.reopen());
  return gate;
}

Status Gate::reopen() {
  if (listener_) return Status::ok();
  CKPT_ASSIGN_OR_RETURN(const AbstractAddress address, parse(address_));
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, unix_socket());
  if (::bind(fd.get(), address.get(), address.size) != 0) {
    if (errno == EADDRINUSE) {
      return already_exists(concat(address_, " is taken by another process of this host"));
    }
    return errno_error(concat("bind to ", address_), errno);
  }
  if (::listen(fd.get(), 8) != 0) return errno_error(concat("listen on ", address_), errno);
  listener_ = std::move(fd);
  return Status::ok();
}

Result<std::optional<GateConnection>> Gate::accept() {
  using Nobody = std::optional<GateConnection>;
  if (!listener_) return Nobody();
  UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return Nobody();
  if (!fd) return errno_error(concat("accept on ", address_), errno);
  CKPT_ASSIGN_OR_RETURN(const PeerProcess peer, peer_of(fd.get()));
  if (const Status same = check_same_user(peer, ::geteuid()); !same.is_ok()) {
    log_warning("refused a connection to ", address_, ": ", same.message());
    return Nobody();
  }
  listener_.reset();
  return Nobody(GateConnection{std::move(fd), peer});
}

Result<UniqueFd> connect_abstract(const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(const AbstractAddress target, parse(address));
  CKPT_ASSIGN_OR_RETURN(UniqueFd fd, unix_socket());
  if (::connect(fd.get(), target.get(), target.size) != 0) {
    return errno_error(concat("connect to ", address), errno);
  }
  return fd;
}

}  // namespace ckpt
