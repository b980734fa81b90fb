#include "base/fd.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

EventFd::EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void EventFd::set() {
  const std::uint64_t one = 1;
  // Fails only when the counter is full, and then the flag is set already.
  [[maybe_unused]] const ssize_t n = ::write(fd_.get(), &one, sizeof(one));
}

void EventFd::clear() {
  std::uint64_t value;
  [[maybe_unused]] const ssize_t n = ::read(fd_.get(), &value, sizeof(value));
}

Result<bool> wait_readable(int fd, Deadline deadline) {
  while (true) {
    pollfd entry{fd, POLLIN, 0};
    const int n = ::poll(&entry, 1, deadline.poll_ms());
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return errno_error("poll", errno);
    if (n == 0 && deadline.expired()) return false;
  }
}

}  // namespace ckpt
