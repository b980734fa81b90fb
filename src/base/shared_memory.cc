#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace ckpt {
namespace {

Result<std::byte*> map_whole(int fd, std::uint64_t bytes, const std::string& name) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return errno_error(concat("mmap of shared memory ", name), errno);
  return static_cast<std::byte*>(address);
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// This process's group and all above it, of either version: each may have a limit.
std::vector<std::string> memory_cgroups() {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto fields = split(line, ':');
    if (fields.size() < 3 || (!fields[1].empty() && fields[1] != "memory")) continue;
    const std::string root = fields[1].empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string path = fields[2];; path.resize(path.rfind('/'))) {
      folders.push_back(root + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
  return folders;
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<SharedMemory> SharedMemory::create(const std::string& name, std::uint64_t bytes) {
  if (bytes == 0) return invalid_argument(concat("shared memory ", name, " of 0 bytes"));
  UniqueFd fd(::shm_open(("/" + name).c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST) return already_exists(concat("/dev/shm/", name, " exists already"));
  if (!fd) return errno_error(concat("shm_open of ", name), errno);
  ::flock(fd.get(), LOCK_SH);
  // Between the two calls a remove_abandoned() may have taken it for nobody's.
  struct stat made {};
  if (::fstat(fd.get(), &made) == 0 && made.st_nlink == 0) return create(name, bytes);
  int error;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) {
    unlink(name);
    if (error == ENOSPC || error == ENOMEM) {
      return resource_exhausted(concat("/dev/shm has no room for ", format_bytes(bytes), " (", name,
                                       "); enlarge it or use a smaller ring"));
    }
    return errno_error(concat("posix_fallocate of ", name), error);
  }
  SharedMemory memory;
  memory.name_ = name;
  auto data = map_whole(fd.get(), bytes, name);
  if (!data) {
    unlink(name);
    return data.status();
  }
  memory.data_ = *data;
  memory.fd_ = std::move(fd);
  memory.size_ = bytes;
  return memory;
}

Result<SharedMemory> SharedMemory::open(const std::string& name) {
  UniqueFd fd(::shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd && errno == ENOENT) return not_found(concat("no shared memory ", name, " in /dev/shm"));
  if (!fd) return errno_error(concat("shm_open of ", name), errno);
  ::flock(fd.get(), LOCK_SH);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error(concat("fstat of ", name), errno);
  if (info.st_uid != ::geteuid()) {
    return failed_precondition(concat("/dev/shm/", name, " belongs to user ", info.st_uid,
                                      ", not to us (", ::geteuid(), ")"));
  }
  if (info.st_size <= 0) return io_error(concat("/dev/shm/", name, " is empty"));
  SharedMemory memory;
  memory.name_ = name;
  CKPT_ASSIGN_OR_RETURN(memory.data_,
                        map_whole(fd.get(), static_cast<std::uint64_t>(info.st_size), name));
  memory.fd_ = std::move(fd);
  memory.size_ = static_cast<std::uint64_t>(info.st_size);
  return memory;
}

void SharedMemory::unlink(const std::string& name) { ::shm_unlink(("/" + name).c_str()); }

int SharedMemory::remove_abandoned(const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.push_back(name);
  }
  int removed = 0;
  for (const std::string& name : names) {
    const UniqueFd fd(::shm_open(("/" + name).c_str(), O_RDWR | O_CLOEXEC, 0));
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    unlink(name);
    ++removed;
  }
  return removed;
}

Result<std::uint64_t> free_shared_memory() {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) return errno_error("statvfs of /dev/shm", errno);
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

Result<std::uint64_t> available_host_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  std::uint64_t available = 0;
  while (std::getline(meminfo, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) available = kib * 1024;
  }
  if (available == 0) return io_error("/proc/meminfo has no MemAvailable line");
  for (const std::string& folder : memory_cgroups()) {
    const bool v2 = std::filesystem::exists(folder + "/memory.max");
    const auto limit = read_number(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto used = read_number(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (limit && used) available = std::min(available, *limit > *used ? *limit - *used : 0);
  }
  return available;
}

}  // namespace ckpt
