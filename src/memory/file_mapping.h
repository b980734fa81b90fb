// Files in /dev/shm, used where they lie: their pages are host memory already, so a checkpoint in
// them needs no second copy.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// A file of a tmpfs under /dev/shm, mapped whole. The memory lives as long as the mapping, also
/// when the file is removed. Others must not shorten the file while it is mapped.
/// Thread-compatible.
class FileMapping {
 public:
  /// Whether `path`, with symbolic links resolved, is a regular file on a tmpfs under /dev/shm that
  /// we may write: what is only readable cannot be pinned. A link in /dev/shm to a disk is not; a
  /// link on a disk to /dev/shm is.
  static Result<bool> possible(const std::string& path);
  /// kFailedPrecondition where possible() is false, kInvalidArgument for an empty file.
  static Result<std::unique_ptr<FileMapping>> map(const std::string& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Resolved: no symbolic link in it.
  const std::string& path() const { return path_; }

  /// Removes the file's name; the memory stays. For the caller, once everything that needs the file
  /// has succeeded. A name that is gone, or that is another file by now, is left alone.
  Status remove_file();

 private:
  FileMapping() = default;

  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace ckpt
