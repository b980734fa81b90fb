#include "parameter_server/server_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckpt {
namespace {

using ::testing::HasSubstr;

TEST(SpreadChoice, GpusHaveRingsOfTheirOwnAndRanksOfAHostShareOne) {
  EXPECT_EQ(spread_choice("auto", DeviceKind::kCuda)->sharing, RingSharing::kPerRank);
  EXPECT_EQ(spread_choice("auto", DeviceKind::kHost)->sharing, RingSharing::kPerHost);
  EXPECT_EQ(spread_choice("peer", DeviceKind::kHost)->sharing, RingSharing::kPerRank);
  EXPECT_EQ(spread_choice("chain", DeviceKind::kHost)->sharing, RingSharing::kPerHost);
}

TEST(SpreadChoice, TheChainTakesRanksWithGpusForHosts) {
  const SpreadChoice chain = *spread_choice("chain", DeviceKind::kCuda);
  EXPECT_EQ(chain.sharing, RingSharing::kPerRank);
  EXPECT_NE(chain.planned_host("a", 0), chain.planned_host("a", 1));
  EXPECT_NE(chain.planned_host("a", 1), chain.planned_host("b", 1));
  for (const char* other : {"auto", "peer", "nccl"}) {
    EXPECT_EQ(spread_choice(other, DeviceKind::kCuda)->planned_host("a", 1), "a") << other;
  }
  EXPECT_EQ(spread_choice("chain", DeviceKind::kHost)->planned_host("a", 1), "a");
}

TEST(SpreadChoice, WhatCannotBeIsRefused) {
  EXPECT_EQ(nccl_for(DeviceKind::kHost).status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(spread_choice("gloo", DeviceKind::kHost).status().message(),
              HasSubstr("auto, peer, nccl and chain"));
}

}  // namespace
}  // namespace ckpt
