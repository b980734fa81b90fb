#include "worker/wait.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ckpt {

Result<Wake> wait_for_any(std::initializer_list<int> fds, Deadline deadline, AbortSignal* abort) {
  std::array<pollfd, 8> entries{};
  std::size_t count = 0;
  entries[count++] = {abort != nullptr ? abort->fd() : -1, POLLIN, 0};
  for (const int fd : fds) {
    if (count < entries.size()) entries[count++] = {fd, POLLIN, 0};
  }
  while (true) {
    const int n = ::poll(entries.data(), count, deadline.poll_ms());
    if (n < 0 && errno != EINTR) return errno_error("poll", errno);
    if (n > 0) return entries[0].revents != 0 ? Wake::kAborted : Wake::kReadable;
    if (n == 0 && deadline.expired()) return Wake::kExpired;
  }
}

bool readable_now(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

Result<PollSet> PollSet::create() {
  PollSet set;
  set.fd_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!set.fd_) return errno_error("epoll_create1", errno);
  return set;
}

Status PollSet::add(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return errno_error("epoll_ctl", errno);
  }
  return Status::ok();
}

void PollSet::remove(int fd) {
  epoll_event event{};
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, &event);
}

}  // namespace ckpt
