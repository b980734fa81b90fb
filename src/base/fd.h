// Owned file descriptors.
#pragma once

#include <cstdint>
#include <utility>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Closes its descriptor; -1 is "none".
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// A level-triggered flag that poll(2) can wait for. All methods from any thread.
class EventFd {
 public:
  EventFd();
  int fd() const { return fd_.get(); }
  void set();
  void clear();

 private:
  UniqueFd fd_;
};

/// Waits until `fd` is readable: true, or false when the deadline passed first.
Result<bool> wait_readable(int fd, Deadline deadline);

}  // namespace ckpt
