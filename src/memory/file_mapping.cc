#include "memory/file_mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

#include "base/fd.h"
#include "base/strings.h"

namespace ckpt {
namespace {

// O_NONBLOCK: a pipe of that name must not make us wait.
constexpr int kReadingFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int kMappingFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

struct OpenFile {
  UniqueFd fd;
  std::string path;  // resolved
  struct stat info {};
  bool possible = false;
};

Result<OpenFile> open_resolved(const std::string& path, int flags) {
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) == nullptr) {
    if (errno == ENOENT) return not_found(concat("no file ", quoted(path)));
    return errno_error(concat("resolving the path ", quoted(path)), errno);
  }
  OpenFile file;
  file.path = resolved;
  file.fd.reset(::open(resolved, flags));
  struct statfs system {};
  if (!file.fd || ::fstat(file.fd.get(), &file.info) != 0 ||
      ::fstatfs(file.fd.get(), &system) != 0) {
    return errno_error(concat("opening ", quoted(file.path)), errno);
  }
  file.possible = file.path.starts_with("/dev/shm/") && system.f_type == TMPFS_MAGIC &&
                  S_ISREG(file.info.st_mode);
  return file;
}

}  // namespace

Result<bool> FileMapping::possible(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const OpenFile file, open_resolved(path, kReadingFlags));
  // GPUs pin only what may be written.
  return file.possible && UniqueFd(::open(file.path.c_str(), kMappingFlags)).get() >= 0;
}

Result<std::unique_ptr<FileMapping>> FileMapping::map(const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(OpenFile file, open_resolved(path, kMappingFlags));
  if (!file.possible) {
    return failed_precondition(concat(quoted(file.path),
                                      " is no regular file on a tmpfs under /dev/shm: it cannot be "
                                      "used in place, read it instead"));
  }
  if (file.info.st_size == 0) return invalid_argument(concat(quoted(file.path), " is empty"));
  const auto bytes = static_cast<std::uint64_t>(file.info.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0);
  if (data == MAP_FAILED) return errno_error(concat("mmap of ", quoted(file.path)), errno);
  std::unique_ptr<FileMapping> mapping(new FileMapping);
  mapping->path_ = std::move(file.path);
  mapping->device_ = file.info.st_dev;
  mapping->inode_ = file.info.st_ino;
  mapping->data_ = static_cast<std::byte*>(data);
  mapping->bytes_ = bytes;
  return mapping;
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status FileMapping::remove_file() {
  struct stat info {};
  if (::lstat(path_.c_str(), &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) {
    return Status::ok();
  }
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return errno_error(concat("removing ", quoted(path_)), errno);
  }
  return Status::ok();
}

}  // namespace ckpt
