// The offer lane (--fan-out): what arrives in the ring is copied, chunk by chunk, into the pool
// that other jobs read meanwhile. So a job is some chunks behind the one before it, not buckets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/catalog.h"
#include "collective/host_progress.h"
#include "device/device.h"
#include "parameter_server/offered_copy.h"
#include "plan/schedule.h"

namespace ckpt {

/// A chunk, and the progress number that says when it lies in the ring.
struct ArrivingChunk {
  Progress::Slot slot;
  std::uint64_t target;
  Chunk chunk;
};

/// All chunks of a pass in the order in which the lane copies them: by bucket, and those of a part
/// from its beginning. `schedules`: of the ranks in `layout.local_ranks()`, one for each; `rank` is
/// one of them, and only its own is looked at where it pulls everything itself.
std::vector<ArrivingChunk> arriving_chunks(std::span<const Schedule* const> schedules,
                                           const HostProgressLayout& layout, int rank);

/// The referred objects outlive it.
struct OfferContext {
  const Catalog& catalog;
  const Plan& plan;
  const Progress& progress;
  std::vector<ArrivingChunk> arriving;
  const std::byte* ring;
  OfferedCopy& copy;
  std::unique_ptr<CopyStream> stream;
};

class OfferLane {
 public:
  static Result<std::unique_ptr<OfferLane>> create(OfferContext context);
  /// What nobody has checked is offered no longer. run() has returned.
  ~OfferLane();

  /// Blocking, once.
  Status run(Deadline deadline, AbortSignal& abort);
  /// The worker has loaded this bucket: returns when it is copied, and may leave the ring. Where it
  /// was not `checked` against its digests on the way to the worker, the copy is now. Buckets in
  /// order, one thread.
  Status confirm(std::uint32_t bucket, bool checked, Deadline deadline, AbortSignal& abort);
  /// Any thread.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  OfferLane(OfferContext context, Progress copied);
  bool has_arrived(const ArrivingChunk& arriving) const;
  Status copy(std::span<const ArrivingChunk> arrived, Deadline deadline, AbortSignal& abort);
  void tell_copied(std::size_t chunks);

  OfferContext context_;
  Progress copied_;  // of one slot: buckets that are copied wholly
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
