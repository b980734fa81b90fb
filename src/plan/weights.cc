#include "plan/weights.h"

#include <algorithm>
#include <cmath>

namespace ckpt {

std::vector<std::uint64_t> device_costs(std::span<const PlanRank> ranks) {
  double fastest = 0;
  for (const PlanRank& rank : ranks) fastest = std::max(fastest, rank.bandwidth);
  std::vector<std::uint64_t> costs;
  costs.reserve(ranks.size());
  for (const PlanRank& rank : ranks) {
    // One division and one exact scaling by a power of two: the same on every machine.
    const double slowness = std::min(fastest / rank.bandwidth, static_cast<double>(kMaxSlowness));
    costs.push_back(static_cast<std::uint64_t>(std::floor(slowness * kUnitCost)));
  }
  return costs;
}

}  // namespace ckpt
