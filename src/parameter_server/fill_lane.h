// The fill lane: an owner's chunks, in plan order, out of its pool and into the host's ring or its
// own staging.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "collective/host_progress.h"
#include "device/device.h"
#include "memory/host_pool.h"
#include "plan/schedule.h"

namespace ckpt {

/// Where the chunks of a fill stream go.
struct FillTarget {
  std::byte* ring = nullptr;     ///< straight into a ring: PartPlace::ring_offset counts from here
  std::byte* staging = nullptr;  ///< or into staging: chunk i in slot i modulo `slots`
  std::uint64_t slot_bytes = 0;
  std::uint64_t slots = 0;
  std::vector<int>
      pullers;  ///< with staging: the ranks that must have pulled a chunk before its slot is reused
};

/// The referred objects outlive it.
struct FillContext {
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  const RingCredits& space;
  const HostPool& pool;
  int rank;
  FillTarget target;
  std::unique_ptr<CopyStream> stream;
};

class FillLane {
 public:
  explicit FillLane(FillContext context) : context_(std::move(context)) {}

  /// Blocking, once. Afterwards no copy of it is under way.
  Status run(Deadline deadline, AbortSignal& abort);
  /// Any thread.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct InFlight {
    std::size_t sequence;
    CopyStream::Ticket ticket;
  };

  bool has_room(std::size_t sequence) const;
  Status wait_for_room(std::size_t sequence, Deadline deadline, AbortSignal& abort) const;
  Status start(std::size_t sequence);
  Status finish_oldest(Deadline deadline, AbortSignal& abort);

  FillContext context_;
  std::deque<InFlight> in_flight_;
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
