// Sources: from which of its owners each tensor is taken, and in which order each owner gives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace ckpt {

struct QueuedTensor {
  std::uint32_t tensor;  ///< index into Catalog::tensors()
  std::uint64_t bytes;
  std::uint64_t pool_offset;  ///< at the owner
};

/// What stays together: neighbours of one group, or a single tensor where the group is larger than
/// a bucket. Tensors without bytes belong to a neighbour.
struct Unit {
  std::uint32_t first;  ///< index into SourceQueues::tensors
  std::uint32_t count;
  std::uint64_t bytes;  ///< in the ring: every tensor rounded up to kRingAlignment
};

/// All owners' queues, one behind the other, each in the owner's layout order. Every tensor of the
/// catalog is in exactly one of them.
struct SourceQueues {
  std::vector<QueuedTensor> tensors;
  std::vector<Unit> units;
  std::vector<std::uint32_t> first_unit;  ///< of rank r; one element more than there are ranks
};

/// Replicas are dealt to the owner whose network device would be done first. With one host to
/// serve, recipients come before other ranks of that host, and those before ranks elsewhere; with
/// several, a source that is no recipient counts a quarter more, and one on a host without
/// recipients also for the additional hop. A source is kept for up to `run_bytes` (less where
/// there is little to share), so that what it gives is contiguous in its pool.
SourceQueues queue_sources(const Catalog& catalog, std::span<const PlanRank> ranks,
                           std::uint64_t run_bytes, std::uint64_t bucket_bytes);

}  // namespace ckpt
