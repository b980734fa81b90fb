#include "transport/read_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace ckpt {
namespace {

TEST(ReadPlan, CoversTheRangesInOrderAndCrossesNoGrain) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t grain = round % 2 ? kReadGrain : kEagerBytes;
    std::vector<std::byte> base(1);
    std::vector<ReadRange> ranges;
    std::uint64_t at = 0;
    for (int i = 0; i < 40; ++i) {
      const std::uint64_t bytes = random() % 3 ? random() % 30000 : random() % (3 * kReadGrain);
      ranges.push_back({1, random() % (4 * kReadGrain), base.data() + at, bytes});
      at += bytes;
    }
    std::size_t range = 0;
    std::uint64_t within = 0;
    for (const ReadRequest& request : plan_requests(ranges, grain)) {
      ASSERT_FALSE(request.pieces.empty());
      ASSERT_LE(request.pieces.size(), kGatherPieces);
      ASSERT_LE(request.bytes, request.pieces.size() == 1 ? grain : kGatherBytes);
      std::uint64_t sum = 0;
      for (const ReadRange& piece : request.pieces) {
        while (within == ranges[range].bytes) ++range, within = 0;
        ASSERT_EQ(piece.offset, ranges[range].offset + within);
        ASSERT_EQ(piece.destination, static_cast<std::byte*>(ranges[range].destination) + within);
        ASSERT_GT(piece.bytes, 0u);
        ASSERT_EQ(piece.offset / grain, (piece.offset + piece.bytes - 1) / grain);
        within += piece.bytes;
        sum += piece.bytes;
      }
      ASSERT_EQ(sum, request.bytes);
    }
    while (range < ranges.size() && within == ranges[range].bytes) ++range, within = 0;
    ASSERT_EQ(range, ranges.size());
  }
}

TEST(ReadPlan, RefusesOverflow) {
  std::byte there{};
  const std::vector<RemoteRegion> regions = {{3, 100}, {7, 0}};
  const auto check = [&](const ReadRange& range) {
    return check_ranges({&range, 1}, regions, "rank 1").code();
  };
  EXPECT_EQ(check({3, 0, &there, 100}), StatusCode::kOk);
  EXPECT_EQ(check({3, 100, nullptr, 0}), StatusCode::kOk);
  EXPECT_EQ(check({7, 0, nullptr, 0}), StatusCode::kOk);
  EXPECT_EQ(check({3, 1, &there, 100}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({3, 1, &there, ~std::uint64_t{0}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({3, ~std::uint64_t{0}, &there, 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(check({5, 0, &there, 1}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt
