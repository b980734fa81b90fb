#include "memory/tensor_sums.h"

#include <gtest/gtest.h>

#include "checkpoint/digest.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kBlock = TensorSums::kBlockBytes;

TEST(TensorSums, DigestsAndRangesAreThoseOfTheBytes) {
  const std::vector<std::uint64_t> bytes = {0, 3 * kBlock + 5, kBlock, 1};
  TensorSums sums(bytes);
  std::vector<std::vector<std::byte>> data;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    data.emplace_back(bytes[t]);
    for (std::size_t i = 0; i < bytes[t]; ++i) data[t][i] = std::byte(i * 37 + t + i / 1000);
    for (std::uint64_t at = 0; at < bytes[t]; at += kBlock / 2) {  // two runs for each block
      const std::uint64_t run = std::min(kBlock / 2, bytes[t] - at);
      sums.add(t, at, digest_sum(data[t].data() + at, run, at / 8));
    }
    EXPECT_EQ(sums.digest(t), digest(data[t]));
  }
  EXPECT_EQ(sums.digests().size(), 4u);
  EXPECT_EQ(sums.range_sum(1, kBlock, 2 * kBlock),
            digest_sum(data[1].data() + kBlock, 2 * kBlock, kBlock / 8));
  EXPECT_EQ(sums.range_sum(1, 3 * kBlock, 5),
            digest_sum(data[1].data() + 3 * kBlock, 5, 3 * kBlock / 8));
  EXPECT_EQ(sums.range_sum(1, 0, 0), 0u);
  EXPECT_EQ(sums.range_sum(0, 0, 0), 0u);
  EXPECT_FALSE(sums.range_sum(1, 8, kBlock));
  EXPECT_FALSE(sums.range_sum(1, 0, kBlock + 8));
  EXPECT_FALSE(sums.range_sum(1, 3 * kBlock, kBlock));
  EXPECT_FALSE(sums.range_sum(1, kBlock, ~0ull));
}

}  // namespace
}  // namespace ckpt
