#include "plan/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace ckpt {

std::vector<std::uint32_t> device_numbers(std::span<const PlanRank> ranks) {
  std::map<std::pair<int, int>, std::uint32_t> shared;
  std::vector<std::uint32_t> numbers;
  numbers.reserve(ranks.size());
  std::uint32_t next = 0;
  for (const PlanRank& rank : ranks) {
    if (rank.device < 0) {
      numbers.push_back(next++);
      continue;
    }
    const auto [at, is_new] = shared.try_emplace({rank.host, rank.device}, next);
    if (is_new) ++next;
    numbers.push_back(at->second);
  }
  return numbers;
}

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
