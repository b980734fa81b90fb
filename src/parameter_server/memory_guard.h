// Whether another process still has memory of this one open: memory of a GPU must not be freed
// before.
//
// A guard is a file in /dev/shm beside the memory, by which the kernel keeps the books. Who opens
// the memory holds a shared lock of the file meanwhile, and a process that dies lets go of it,
// however it dies; one that is merely held up does not. Once the owner has removed the name, nobody
// can join, and an exclusive lock is to be had exactly when nobody is left.
#pragma once

#include <string>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// The owner's side. Made before anybody is told how the memory is opened, and destroyed after it
/// has been freed.
class MemoryGuard {
 public:
  /// `name`: new in /dev/shm, with the prefix of what is removed after a job that was killed.
  static Result<MemoryGuard> create(std::string name);
  MemoryGuard(MemoryGuard&& other) noexcept = default;
  MemoryGuard& operator=(MemoryGuard&& other) noexcept;
  ~MemoryGuard();

  /// What the others are told.
  const std::string& name() const { return name_; }
  /// From now on nobody opens the memory; who has it open keeps it.
  void close_to_others();
  /// Whether anybody has it open. Closes it to others.
  bool in_use();

 private:
  MemoryGuard(std::string name, UniqueFd fd) : name_(std::move(name)), fd_(std::move(fd)) {}

  std::string name_;
  UniqueFd fd_;  // a shared lock until in_use(), so that the file does not look abandoned
  bool closed_ = false;
};

/// The side of a process that opens the memory: begins before that and ends after it has closed it.
class MemoryUse {
 public:
  MemoryUse() = default;
  /// kAborted when the owner frees the memory, or has.
  static Result<MemoryUse> begin(const std::string& name);
  MemoryUse(MemoryUse&& other) noexcept = default;
  MemoryUse& operator=(MemoryUse&& other) noexcept;
  ~MemoryUse();

 private:
  explicit MemoryUse(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace ckpt
