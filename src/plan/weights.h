// How busy a rank's network device is, in whole numbers: every participant computes the plan for
// itself, so no result may hang on how a compiler rounds floating point.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace ckpt {

/// `bytes` rounded up to kRingAlignment.
constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
}

/// For each rank the cost of one kRingAlignment of bytes: kUnitCost for the fastest device, and
/// more for slower ones (at most kMaxSlowness times as much, so that no sum overflows).
inline constexpr std::uint64_t kUnitCost = 1 << 12;
inline constexpr std::uint64_t kMaxSlowness = 1 << 10;
std::vector<std::uint64_t> device_costs(std::span<const PlanRank> ranks);

/// For each rank the number of its network device, counted from 0 over all hosts.
std::vector<std::uint32_t> device_numbers(std::span<const PlanRank> ranks);

}  // namespace ckpt
