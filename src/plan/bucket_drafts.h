// Bucket drafts: which owners give how much to each bucket.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/sources.h"

namespace ckpt {

/// What one owner gives: neighbours of its queue.
struct PartDraft {
  int owner;
  std::uint32_t first_tensor, end_tensor;  ///< in SourceQueues::tensors
  std::uint64_t bytes;                     ///< a multiple of kRingAlignment
};

/// Deals the units of all queues to buckets, one bucket after the other. Owners take turns, in an
/// order that spreads any few of them over the hosts; within a bucket the owner that has given
/// least gives next, so that parts differ by at most one unit.
class BucketDrafts {
 public:
  /// `queues` must live as long as this. `bucket_bytes` is a multiple of kRingAlignment.
  BucketDrafts(const SourceQueues& queues, std::span<const PlanRank> ranks,
               std::uint64_t bucket_bytes, std::uint64_t chunk_bytes);

  /// The parts of the next bucket in the order in which they lie in it, valid until the next call;
  /// empty when everything has been dealt.
  std::span<const PartDraft> next();

 private:
  using Slot = std::pair<std::uint64_t, std::uint32_t>;  ///< bytes so far, index into parts_

  void begin_parts();
  void fill_parts();
  void offer(std::uint32_t part);
  bool take_unit(PartDraft& part);
  bool has_units(int owner) const { return next_unit_[owner] < queues_.first_unit[owner + 1]; }

  const SourceQueues& queues_;
  const std::uint64_t bucket_bytes_;
  const std::uint64_t most_parts_;
  std::vector<std::uint32_t> next_unit_;  ///< of each rank
  /// Owners that have units left, in the order of their turns; a circle that begins at turn_.
  std::vector<int> owners_;
  std::size_t turn_ = 0;
  std::size_t waiting_;
  std::uint64_t room_ = 0;   ///< left in the bucket
  std::uint64_t level_ = 0;  ///< parts of more bytes do not grow
  std::vector<PartDraft> parts_;
  std::vector<Slot> open_;  ///< a heap of the parts that can grow, smallest on top
};

}  // namespace ckpt
