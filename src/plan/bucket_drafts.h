// Bucket drafts: which owners give how much to each bucket.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/part_pieces.h"
#include "plan/plan.h"
#include "plan/sources.h"

namespace ckpt {

/// Deals the units of all queues to buckets of at most `options.bucket_bytes` (a multiple of
/// kRingAlignment). Result: all parts, in the order in which they lie in their buckets; those
/// of one owner are neighbours.
///
/// Owners take turns, as many of them in a bucket as there are chunks in it, in an order that
/// spreads any few of them over the hosts; within a bucket the owner that has given least gives
/// next, so that parts differ by at most one unit. Where the links of those that are read from
/// other hosts differ in speed, each owner gives instead, to every bucket, in proportion to all
/// that it gives (no more parts than chunks between hosts): equal parts would keep the fast links
/// waiting for the slow ones.
std::vector<PartDraft> draft_buckets(const SourceQueues& queues, std::span<const PlanRank> ranks,
                                     const PlanOptions& options);

}  // namespace ckpt
