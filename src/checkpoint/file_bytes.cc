#include "checkpoint/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/fd.h"
#include "base/host.h"
#include "base/strings.h"

namespace ckpt {

Status read_at(int fd, std::span<std::byte> to, std::uint64_t offset) {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read", errno);
    if (n == 0) return io_error("the file became shorter while it was read");
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return Status::ok();
}

Status write_at(int fd, std::span<const std::byte> from, std::uint64_t offset) {
  while (!from.empty()) {
    const ssize_t n = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == EDQUOT)) {
      return resource_exhausted("write: no space left: free some, or write elsewhere");
    }
    if (n < 0) return errno_error("write", errno);
    from = from.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return Status::ok();
}

Result<std::vector<std::byte>> read_whole_file(const std::string& path, std::uint64_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return errno_error(concat(path, ": open"), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error(concat(path, ": stat"), errno);
  if (!S_ISREG(info.st_mode)) return invalid_argument(concat(path, ": not a regular file"));
  if (static_cast<std::uint64_t>(info.st_size) > limit) {
    return invalid_argument(concat(path, ": ", info.st_size, " bytes, over the limit of ", limit));
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.st_size));
  Status status = read_at(fd.get(), bytes, 0);
  if (!status.is_ok()) return status.with_context(path);
  return bytes;
}

std::string temporary_name(const std::string& path) {
  const std::filesystem::path target(path);
  const std::string name = concat(".", target.filename().string(), ".", random_id(), ".part");
  return (target.parent_path() / name).string();
}

Status replace_file(const std::string& path, std::span<const std::byte> bytes) {
  const std::string temporary = temporary_name(path);
  const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd) return errno_error(concat(path, ": create"), errno);
  Status status = write_at(fd.get(), bytes, 0);
  if (status.is_ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = errno_error("rename", errno);
  }
  if (status.is_ok()) return status;
  ::unlink(temporary.c_str());
  return status.with_context(path);
}

}  // namespace ckpt
