#include "control/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/fd.h"
#include "base/strings.h"

namespace ckpt::control {
namespace {

using std::chrono::milliseconds;

/// One attempt: long enough for a far host, short enough to try its other addresses.
constexpr milliseconds kAttempt{2000};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{250};

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

Result<AddressList> resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return unavailable(concat("host ", quoted(address.host), ": ", gai_strerror(error)));
  }
  return AddressList(list);
}

Status try_connect(const addrinfo& target, Deadline deadline, const AbortSignal& abort) {
  const UniqueFd fd(
      ::socket(target.ai_family, target.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("socket", errno);
  if (::connect(fd.get(), target.ai_addr, target.ai_addrlen) == 0) return Status::ok();
  if (errno != EINPROGRESS) return errno_error("connect", errno);
  pollfd waits[] = {{fd.get(), POLLOUT, 0}, {abort.fd(), POLLIN, 0}};
  const Deadline attempt = deadline.earlier(Deadline::after(kAttempt));
  while (::poll(waits, 2, attempt.poll_ms()) == 0) {
    if (attempt.expired()) return errno_error("connect", ETIMEDOUT);
  }
  if (abort.raised()) return abort.cause();
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status::ok() : errno_error("connect", error);
}

HostPort literal(const addrinfo& target, int port) {
  char host[NI_MAXHOST] = {};
  getnameinfo(target.ai_addr, target.ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return {host, port};
}

}  // namespace

Result<HostPort> wait_for_listener(const HostPort& address, Deadline deadline,
                                   const AbortSignal& abort) {
  if (address.host.empty() || address.port < 1 || address.port > 65535) {
    return invalid_argument(concat("hub address ", quoted(address.to_string()),
                                   " is not complete: give host and port"));
  }
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    Status last;
    const Result<AddressList> list = resolve(address);
    if (list) {
      for (const addrinfo* target = list->get(); target != nullptr; target = target->ai_next) {
        last = try_connect(*target, deadline, abort);
        if (last.is_ok()) return literal(*target, address.port);
      }
    } else {
      last = list.status();
    }
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      return unavailable(concat("no hub at ", address.to_string(), ": ", last.message(),
                                "; look whether rank 0 (or the hub) runs, and check the address"));
    }
    pollfd raised = {abort.fd(), POLLIN, 0};
    ::poll(&raised, 1, deadline.earlier(Deadline::after(pause)).poll_ms());
  }
}

}  // namespace ckpt::control
