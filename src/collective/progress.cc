#include "collective/progress.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <memory>
#include <new>

#include "base/strings.h"

namespace ckpt {
namespace {

// The kernel compares 32 bits; the low half of a growing number changes with every step.
std::uint32_t* low_half(const std::atomic<std::uint64_t>& value) {
  static_assert(std::endian::native == std::endian::little);
  return reinterpret_cast<std::uint32_t*>(const_cast<std::atomic<std::uint64_t>*>(&value));
}

void futex_wait(const std::atomic<std::uint64_t>& value, std::uint64_t seen,
                std::chrono::nanoseconds limit) {
  timespec timeout{};
  timeout.tv_nsec = static_cast<long>(limit.count());
  ::syscall(SYS_futex, low_half(value), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &timeout,
            nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint64_t>& value) {
  ::syscall(SYS_futex, low_half(value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// An abort is seen after this time at the latest: the signal lives in one process, the futex in
// several.
constexpr std::chrono::milliseconds kAbortCheck{5};

}  // namespace

Progress::Progress(SharedMemory memory, std::unique_ptr<std::byte[]> own, Slot slots)
    : memory_(std::move(memory)), own_(std::move(own)), slots_(slots) {
  std::byte* base = own_ ? own_.get() : memory_.data();
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  base += (alignof(Cell) - address % alignof(Cell)) % alignof(Cell);
  cells_ = reinterpret_cast<Cell*>(base);
}

Result<Progress> Progress::create_shared(const std::string& name, Slot slots) {
  CKPT_ASSIGN_OR_RETURN(SharedMemory memory,
                        SharedMemory::create(name, std::max<Slot>(slots, 1) * sizeof(Cell)));
  Progress progress(std::move(memory), nullptr, slots);
  progress.name_.reset(new std::string(name));
  return progress;
}

Result<Progress> Progress::open_shared(const std::string& name, Slot slots) {
  CKPT_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::open(name));
  if (memory.size() != std::max<Slot>(slots, 1) * sizeof(Cell)) {
    return internal_error(concat("progress board ", name, " has ", memory.size(),
                                 " bytes, expected ", std::max<Slot>(slots, 1) * sizeof(Cell),
                                 ": the ranks of this host disagree about the plan"));
  }
  return Progress(std::move(memory), nullptr, slots);
}

Result<Progress> Progress::create_private(Slot slots) {
  // One cell more than needed, to align the first.
  auto own = std::make_unique<std::byte[]>((std::size_t{slots} + 1) * sizeof(Cell));
  return Progress(SharedMemory(), std::move(own), slots);
}

std::uint64_t Progress::value(Slot slot) const {
  return cells_[slot].value.load(std::memory_order_acquire);
}

void Progress::publish(Slot slot, std::uint64_t value) {
  std::atomic<std::uint64_t>& cell = cells_[slot].value;
  if (value <= cell.load(std::memory_order_relaxed)) return;
  cell.store(value, std::memory_order_release);
  futex_wake_all(cell);
}

Status Progress::wait(Slot slot, std::uint64_t target, Deadline deadline,
                      AbortSignal& abort) const {
  const std::atomic<std::uint64_t>& cell = cells_[slot].value;
  while (true) {
    const std::uint64_t seen = cell.load(std::memory_order_acquire);
    if (seen >= target) return Status();
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      return deadline_exceeded(concat("step ", target, " had not been reached (", seen, " had)"));
    }
    futex_wait(cell, seen, std::min<std::chrono::nanoseconds>(deadline.remaining(), kAbortCheck));
  }
}

}  // namespace ckpt
