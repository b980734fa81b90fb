#include "parameter_server/planned_pass.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

constexpr std::uint64_t kGiB = 1ull << 30;

PassOffer offer(const char* host, const char* gpu, std::uint64_t available,
                std::uint64_t kept = 0) {
  PassOffer made;
  made.host_id = host;
  made.device_kind = *gpu == 0 ? DeviceKind::kHost : DeviceKind::kCuda;
  made.device_uuid = gpu;
  made.available_bytes = available;
  made.kept_bytes = kept;
  return made;
}

TEST(LeastAvailable, TheRanksOfAGpuShareItWhateverHostsTheySayTheyAreOn) {
  EXPECT_EQ(least_available({offer("a", "GPU-1", 8 * kGiB), offer("a", "GPU-1", 8 * kGiB)},
                            RingSharing::kPerRank),
            4 * kGiB);
  EXPECT_EQ(least_available({offer("a", "GPU-1", 8 * kGiB), offer("b", "GPU-1", 8 * kGiB)},
                            RingSharing::kPerRank),
            4 * kGiB);
  EXPECT_EQ(least_available({offer("a", "GPU-1", 8 * kGiB), offer("a", "GPU-2", 6 * kGiB)},
                            RingSharing::kPerRank),
            6 * kGiB);
}

TEST(LeastAvailable, RanksWithOneRingForAHostCountOnce) {
  const std::vector<PassOffer> offers = {offer("a", "", 4 * kGiB), offer("a", "", 4 * kGiB),
                                         offer("b", "", 9 * kGiB)};
  EXPECT_EQ(least_available(offers, RingSharing::kPerHost), 4 * kGiB);
  EXPECT_EQ(least_available(offers, RingSharing::kPerRank), 2 * kGiB);
}

TEST(LeastAvailable, WhatTheyHaveKeptIsTheirsToo) {
  EXPECT_EQ(
      least_available({offer("a", "GPU-1", 2 * kGiB, kGiB), offer("a", "GPU-1", 2 * kGiB, kGiB)},
                      RingSharing::kPerRank),
      2 * kGiB);
}

}  // namespace
}  // namespace ckpt
