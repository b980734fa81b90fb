// Bucket drafts: which owners give how much to each bucket.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "plan/sources.h"

namespace ckpt {

/// What one owner gives to a bucket: neighbours of its queue.
struct PartDraft {
  int owner;
  std::uint32_t bucket;
  std::uint32_t first_tensor, end_tensor;  ///< in SourceQueues::tensors
  std::uint64_t bytes;                     ///< a multiple of kRingAlignment
};

/// Deals the units of all queues to buckets of at most `bucket_bytes` (a multiple of
/// kRingAlignment). Owners take turns, in an order that spreads any few of them over the hosts;
/// within a bucket the owner that has given least gives next, so that parts differ by at most one
/// unit. Result: all parts, in the order in which they lie in their buckets.
std::vector<PartDraft> draft_buckets(const SourceQueues& queues, std::span<const PlanRank> ranks,
                                     std::uint64_t bucket_bytes, std::uint64_t chunk_bytes);

}  // namespace ckpt
