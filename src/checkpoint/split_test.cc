#include "checkpoint/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/strings.h"
#include "checkpoint/order.h"
#include "checkpoint/test_model.h"

namespace ckpt {
namespace {

using Shares = std::vector<std::vector<std::uint32_t>>;

std::vector<std::uint64_t> share_bytes(const std::vector<TensorInfo>& tensors,
                                       const Shares& shares) {
  std::vector<std::uint64_t> bytes;
  for (const auto& share : shares) {
    bytes.push_back(0);
    for (const std::uint32_t index : share) bytes.back() += tensors[index].bytes;
  }
  return bytes;
}

void expect_each_once_in_plan_order(const std::vector<TensorInfo>& tensors, const Shares& shares) {
  std::vector<int> seen(tensors.size(), 0);
  for (const auto& share : shares) {
    for (const std::uint32_t index : share) ++seen.at(index);
    EXPECT_TRUE(std::is_sorted(share.begin(), share.end(), [&](std::uint32_t a, std::uint32_t b) {
      return plan_order_less(tensors[a].name, tensors[b].name);
    }));
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(tensors.size()));
}

/// Largest share over what no split can beat.
double largest_over_bound(const std::vector<TensorInfo>& tensors, const Shares& shares) {
  const auto bytes = share_bytes(tensors, shares);
  double total = 0, largest_tensor = 0;
  for (const TensorInfo& tensor : tensors) {
    total += static_cast<double>(tensor.bytes);
    largest_tensor = std::max(largest_tensor, static_cast<double>(tensor.bytes));
  }
  const double bound = std::max(total / static_cast<double>(shares.size()), largest_tensor);
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / bound;
}

TEST(SplitByBytes, RealModelAnyWorldSize) {
  const auto tensors = small_model(6, 16, 8);
  for (const int world : {1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 100, 256}) {
    SCOPED_TRACE(world);
    const Shares shares = split_by_bytes(tensors, world);
    ASSERT_EQ(shares.size(), static_cast<std::size_t>(world));
    expect_each_once_in_plan_order(tensors, shares);
    EXPECT_LE(largest_over_bound(tensors, shares), 1.1);
  }
}

TEST(SplitByBytes, MoreRanksThanTensors) {
  const std::vector<TensorInfo> tensors = {*make_tensor_info("a.weight", DType::kU8, {10}),
                                           *make_tensor_info("b.weight", DType::kU8, {20}),
                                           *make_tensor_info("c.weight", DType::kU8, {0})};
  const Shares shares = split_by_bytes(tensors, 9);
  expect_each_once_in_plan_order(tensors, shares);
  EXPECT_DOUBLE_EQ(largest_over_bound(tensors, shares), 1.0);
}

TEST(SplitByBytes, NothingAndEmptyTensors) {
  EXPECT_EQ(split_by_bytes({}, 3), Shares(3));
  const std::vector<TensorInfo> empty = {*make_tensor_info("a", DType::kU8, {0}),
                                         *make_tensor_info("b", DType::kU8, {0})};
  expect_each_once_in_plan_order(empty, split_by_bytes(empty, 2));
}

TEST(SplitByBytes, DoesNotDependOnTheOrderGiven) {
  auto tensors = small_model(4, 9);
  const auto names = [&] {
    std::vector<std::vector<std::string>> out;
    for (const auto& share : split_by_bytes(tensors, 5)) {
      out.emplace_back();
      for (const std::uint32_t index : share) out.back().push_back(tensors[index].name);
    }
    return out;
  };
  const auto expected = names();
  std::mt19937_64 random(1);
  std::shuffle(tensors.begin(), tensors.end(), random);
  EXPECT_EQ(names(), expected);
}

TEST(SplitByBytes, KeepsGroupsTogetherWhereSharesAllow) {
  const auto tensors = small_model(8, 32);
  std::map<std::uint64_t, std::set<std::size_t>> ranks_of;
  const Shares shares = split_by_bytes(tensors, 8);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::uint32_t index : shares[rank]) {
      ranks_of[group_id(tensors[index].name)].insert(rank);
    }
  }
  for (const auto& [group, ranks] : ranks_of) EXPECT_EQ(ranks.size(), 1u);
}

TEST(SplitByBytes, CutsAGroupThatIsTooLarge) {
  std::vector<TensorInfo> tensors;
  for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
    tensors.push_back(
        *make_tensor_info(concat("layers.0.", projection, ".weight"), DType::kU8, {100}));
  }
  EXPECT_DOUBLE_EQ(largest_over_bound(tensors, split_by_bytes(tensors, 3)), 1.0);
}

TEST(SplitByBytes, ALargeLastTensorIsEvenedOut) {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < 36; ++layer) {
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(
          *make_tensor_info(concat("model.layers.", layer, ".m", i, ".weight"), DType::kU8, {40}));
    }
  }
  tensors.push_back(*make_tensor_info("lm_head.weight", DType::kU8, {1250}));
  EXPECT_LE(largest_over_bound(tensors, split_by_bytes(tensors, 8)), 1.05);
}

TEST(SplitByBytes, EveryRunOfLayersUsesAllRanks) {
  constexpr int kWorld = 8;
  const auto tensors = small_model(16, 64);
  std::vector<int> rank_of(tensors.size());
  const Shares shares = split_by_bytes(tensors, kWorld);
  for (int rank = 0; rank < kWorld; ++rank) {
    for (const std::uint32_t index : shares[rank]) rank_of[index] = rank;
  }
  for (int layer = 3; layer < 16; ++layer) {  // those with experts
    std::vector<double> bytes(kWorld, 0);
    double total = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].name.starts_with(concat("model.layers.", layer, "."))) continue;
      bytes[rank_of[i]] += static_cast<double>(tensors[i].bytes);
      total += static_cast<double>(tensors[i].bytes);
    }
    for (const double b : bytes) EXPECT_GT(b, total / kWorld / 2) << "layer " << layer;
  }
}

TEST(SplitByBytes, PublishedModels) {
  for (const std::string_view name : model_names()) {
    const auto tensors = *model_tensors(name);
    for (const int world : {4, 8, 13, 64, 256}) {
      SCOPED_TRACE(concat(name, " over ", world));
      const Shares shares = split_by_bytes(tensors, world);
      expect_each_once_in_plan_order(tensors, shares);
      EXPECT_LE(largest_over_bound(tensors, shares), 1.1);
    }
  }
}

// Groups of at most a tenth of a share stand in nobody's way.
TEST(SplitByBytes, SmallGroupsAreEvenedOut) {
  std::mt19937_64 random(3);
  int tried = 0;
  for (int round = 0; round < 600; ++round) {
    const std::uint64_t most = 1ull << (1 + random() % 30);
    const std::size_t count = random() % 3000, per_group = 1 + random() % 8;
    std::vector<TensorInfo> tensors;
    std::uint64_t total = 0;
    std::map<std::uint64_t, std::uint64_t> groups;
    for (std::size_t i = 0; i < count; ++i) {
      // Most are small, as norms beside weights are.
      const std::uint64_t size = random() % (1 + (most >> random() % 8));
      tensors.push_back(
          *make_tensor_info(concat("m.layers.", i / per_group, ".m", i % per_group, ".weight"),
                            DType::kU8, {static_cast<std::int64_t>(size)}));
      total += size;
      groups[group_id(tensors.back().name)] += size;
    }
    const int world = 1 + static_cast<int>(random() % 60);
    std::uint64_t largest = 0;
    for (const auto& [group, bytes] : groups) largest = std::max(largest, bytes);
    if (largest == 0 || largest * 10 * static_cast<std::uint64_t>(world) > total) continue;
    ++tried;
    const auto bytes = share_bytes(tensors, split_by_bytes(tensors, world));
    const double mean = static_cast<double>(total) / world;
    EXPECT_LE(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())), 1.1 * mean)
        << count << " tensors over " << world;
  }
  EXPECT_GT(tried, 100);
}

TEST(SplitByBytes, RandomSizes) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<TensorInfo> tensors;
    std::vector<std::int64_t> sizes = {0};
    for (std::size_t i = 0, count = random() % 300; i < count; ++i) {
      const auto size = static_cast<std::int64_t>(random() % (1ull << (random() % 20)));
      sizes.push_back(size);
      tensors.push_back(*make_tensor_info(concat("m.layers.", i / 7, ".m", i % 7, ".weight"),
                                          DType::kU8, {size}));
    }
    const int world = 1 + static_cast<int>(random() % 40);
    const Shares shares = split_by_bytes(tensors, world);
    expect_each_once_in_plan_order(tensors, shares);
    if (*std::max_element(sizes.begin(), sizes.end()) == 0) continue;
    // Dealing the largest first is never worse than 4/3 of the best; what is small adds 1/20.
    EXPECT_LE(largest_over_bound(tensors, shares), 1.4) << tensors.size() << " over " << world;
  }
}

TEST(SplitByFiles, KeepsFilesWhole) {
  const auto tensors = small_model(6, 8);
  std::vector<std::uint32_t> file_of;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    file_of.push_back(static_cast<std::uint32_t>(1000 + i * 13 / tensors.size()));
  }
  for (const int world : {1, 4, 13, 20}) {
    const Shares shares = split_by_files(tensors, file_of, world);
    ASSERT_EQ(shares.size(), static_cast<std::size_t>(world));
    expect_each_once_in_plan_order(tensors, shares);
    std::map<std::uint32_t, std::set<std::size_t>> ranks_of;
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      for (const std::uint32_t index : shares[rank]) ranks_of[file_of[index]].insert(rank);
    }
    EXPECT_EQ(ranks_of.size(), 13u);
    for (const auto& [file, ranks] : ranks_of) EXPECT_EQ(ranks.size(), 1u) << file;
  }
}

}  // namespace
}  // namespace ckpt
