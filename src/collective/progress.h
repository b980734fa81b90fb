// Progress: numbers that only grow, one writer each, that other threads and processes of the host
// wait for.
//
// All coordination inside a host is of this form ("entry rank 2 has filled 17 chunks", "rank 5's
// worker has acknowledged 3 buckets"), and what other hosts report is written into the same kind of
// numbers. There is nothing to lock, a reader can never miss a step, and a number says exactly how
// far its writer has come.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "base/shared_memory.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// An array of progress numbers, all zero at first, in shared or private memory. All methods from
/// any thread.
class Progress {
 public:
  using Slot = std::uint32_t;

  /// In /dev/shm under `name` (must be new), for the ranks of this host. The name goes with this
  /// object, or by close_to_others.
  static Result<Progress> create_shared(const std::string& name, Slot slots);
  /// One made by create_shared; `slots` must be equal.
  static Result<Progress> open_shared(const std::string& name, Slot slots);
  /// For this process alone.
  static Result<Progress> create_private(Slot slots);

  /// Nobody can open it any more; who has, keeps it.
  void close_to_others() { name_.reset(); }
  Slot slots() const { return slots_; }
  std::uint64_t value(Slot slot) const;
  /// Sets `slot` to `value`, if that is more, and wakes who waits for it. One thread at a time per
  /// slot.
  void publish(Slot slot, std::uint64_t value);
  /// Returns when value(slot) >= target; else kDeadlineExceeded, or the cause of `abort`. What the
  /// writer wrote to memory before publish() is visible afterwards.
  Status wait(Slot slot, std::uint64_t target, Deadline deadline, AbortSignal& abort) const;

 private:
  // A cache line each: neighbours have different writers.
  struct alignas(64) Cell {
    std::atomic<std::uint64_t> value;
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  Progress(SharedMemory memory, std::unique_ptr<std::byte[]> own, Slot slots);
  struct Unlink {
    void operator()(const std::string* name) const {
      SharedMemory::unlink(*name);
      delete name;
    }
  };

  std::unique_ptr<const std::string, Unlink> name_;  // while others may open it
  SharedMemory memory_;
  std::unique_ptr<std::byte[]> own_;
  Cell* cells_ = nullptr;
  Slot slots_ = 0;
};

}  // namespace ckpt
