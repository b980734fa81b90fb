// Memory that other processes of this host can map: POSIX shared memory, reserved before it is
// used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// One mapping of a POSIX shared memory object. Unmapped by the destructor; the name lives until
/// unlink().
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  /// Makes /dev/shm/`name` (no slash in it, mode 0600), zero-filled. Pages are reserved with
  /// posix_fallocate, so that a full /dev/shm is kResourceExhausted here, never SIGBUS later.
  /// A stale object of the same name is an error (kAlreadyExists).
  static Result<SharedMemory> create(const std::string& name, std::uint64_t bytes);
  /// Maps an existing object whole, for reading and writing. Refuses one of another user.
  static Result<SharedMemory> open(const std::string& name);

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  const std::string& name() const { return name_; }
  /// The object's file, e.g. /dev/shm/NAME: what torch.from_file opens.
  std::string path() const { return "/dev/shm/" + name_; }
  /// Removes the name; mappings stay valid. Removing a name that is gone is fine.
  static void unlink(const std::string& name);
  /// Removes every object of this user whose name begins with `prefix` and that no living process
  /// has mapped through this class: what killed processes left behind. Returns how many.
  static int remove_abandoned(const std::string& prefix);

 private:
  std::string name_;
  // Held open with a shared lock, by which remove_abandoned() knows that somebody lives.
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// Free bytes in /dev/shm.
Result<std::uint64_t> free_shared_memory();
/// MemAvailable of /proc/meminfo, capped by the cgroup's limit (v2 or v1), in bytes.
Result<std::uint64_t> available_host_memory();

}  // namespace ckpt
