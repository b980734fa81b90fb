// In which order the chunks of a host go through NCCL: the same on all its ranks, computed.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/schedule.h"

namespace ckpt {

/// One group call: indices into Schedule::pull, at most one for each rank that fills.
using NcclRound = std::vector<std::uint32_t>;

/// The fill streams of a host's pull list as group calls. Each stream keeps its order; in a round
/// each gives its next chunk, so that all links work at once, unless the chunk's ring space becomes
/// free only with buckets that are not complete before this round: then that stream sits the round
/// out. So no round waits for the end of a bucket that needs a later round, and the rounds in their
/// order cannot deadlock.
std::vector<NcclRound> nccl_rounds(const Plan& plan, const Schedule& schedule);

}  // namespace ckpt
