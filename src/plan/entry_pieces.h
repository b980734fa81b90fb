// Entry pieces: parts that come from another host are cut, so that all network devices of a host
// work at once although only few owners give to a bucket.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/bucket_drafts.h"
#include "plan/plan.h"
#include "plan/sources.h"

namespace ckpt {

/// Cuts each part between tensors into as many pieces of about equal size as the hosts that receive
/// it from elsewhere have devices among their recipients (PlanRank::device; ranks of which none is
/// known cut nothing), but into none of less than `least_bytes`.
std::vector<PartDraft> cut_for_entries(std::vector<PartDraft> drafts, const SourceQueues& queues,
                                       std::span<const PlanRank> ranks, std::uint64_t least_bytes);

}  // namespace ckpt
