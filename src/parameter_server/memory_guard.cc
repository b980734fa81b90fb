#include "parameter_server/memory_guard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/strings.h"

namespace ckpt {
namespace {

bool has_name(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

// Closing would not do: a child that was forked meanwhile has the same lock.
void unlock(const UniqueFd& fd) {
  if (fd) ::flock(fd.get(), LOCK_UN);
}

}  // namespace

Result<MemoryGuard> MemoryGuard::create(std::string name) {
  while (true) {
    UniqueFd fd(::shm_open(("/" + name).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!fd) return errno_error(concat("shm_open of ", name), errno);
    ::flock(fd.get(), LOCK_SH);
    // Between the two calls somebody may have taken it for abandoned.
    if (has_name(fd.get())) return MemoryGuard(std::move(name), std::move(fd));
  }
}

MemoryGuard& MemoryGuard::operator=(MemoryGuard&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(closed_, other.closed_);
  return *this;
}

MemoryGuard::~MemoryGuard() {
  if (fd_) close_to_others();
}

void MemoryGuard::close_to_others() {
  if (!std::exchange(closed_, true)) ::shm_unlink(("/" + name_).c_str());
}

bool MemoryGuard::in_use() {
  close_to_others();
  return ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0;
}

Result<MemoryUse> MemoryUse::begin(const std::string& name) {
  const auto gone = [&] {
    return aborted(concat("its owner frees it (", name, " is gone from /dev/shm)"));
  };
  UniqueFd fd(::shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd && errno == ENOENT) return gone();
  if (!fd) return errno_error(concat("shm_open of ", name), errno);
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) return gone();
  MemoryUse use(std::move(fd));
  if (!has_name(use.fd_.get())) return gone();
  return use;
}

MemoryUse& MemoryUse::operator=(MemoryUse&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

MemoryUse::~MemoryUse() { unlock(fd_); }

}  // namespace ckpt
