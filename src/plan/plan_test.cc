// What a plan promises under conditions, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "plan/test_topology.h"
#include "plan/weights.h"

namespace ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_catalog;
using testing::make_ranks;
using testing::name_in_group;
using testing::TestTensor;

using Held = std::vector<std::vector<TestTensor>>;

constexpr std::uint64_t kStep = kRingAlignment;

PlanOptions small_options(std::uint64_t bucket_bytes, std::uint64_t chunk_bytes) {
  PlanOptions options;
  options.ring_bytes = 2 * bucket_bytes;
  options.bucket_bytes = bucket_bytes;
  options.chunk_bytes = options.cross_chunk_bytes = chunk_bytes;
  return options;
}

/// `count` tensors of their own groups for every rank, of 1 byte to `largest`.
Held random_tensors(std::mt19937_64& random, int world_size, int count, std::uint64_t largest) {
  Held held(world_size);
  for (int i = 0; i < world_size * count; ++i) {
    held[i % world_size].push_back({name_in_group(i, 0), 1 + random() % largest});
  }
  return held;
}

std::map<int, std::uint64_t> bytes_by_owner(const Plan& plan) {
  std::map<int, std::uint64_t> bytes;
  for (const Part& part : plan.parts) bytes[part.owner] += part.bytes;
  return bytes;
}

TEST(Plan, DrawsEvenlyOnAllOwners) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const int world_size = static_cast<int>(1 + random() % 9);
    const std::uint64_t k = 1 + random() % 6;
    const std::uint64_t bucket = 16 * kStep * k;
    const std::uint64_t largest = 1 + random() % (bucket / k);
    const Held held = random_tensors(random, world_size, 40, largest);
    const Catalog catalog = make_catalog(held);
    const Plan plan =
        *make_plan(catalog, make_ranks(1, world_size), small_options(bucket, bucket / k));

    std::map<int, std::uint64_t> left;
    for (int rank = 0; rank < world_size; ++rank) {
      for (const TestTensor& tensor : held[rank]) left[rank] += padded(tensor.bytes);
    }
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", bucket " << b);
      // Every owner with a share left is used within ceil(owners / k) buckets.
      const std::size_t with_data =
          std::ranges::count_if(left, [](const auto& owner) { return owner.second > 0; });
      const std::size_t at_once = std::min<std::size_t>(k, with_data);
      const std::size_t window = (with_data + at_once - 1) / at_once;
      const auto has_share = [&](const auto& owner) { return owner.second >= bucket / at_once; };
      std::set<int> used;
      for (std::size_t w = b; w < std::min(b + window, plan.buckets.size()); ++w) {
        for (const Part& part : plan.parts_of(plan.buckets[w])) used.insert(part.owner);
      }
      for (const auto& owner : left) {
        EXPECT_TRUE(!has_share(owner) || used.contains(owner.first)) << "owner " << owner.first;
      }
      // Parts of those owners differ by at most the largest group.
      const auto parts = plan.parts_of(plan.buckets[b]);
      EXPECT_EQ(parts.size(), at_once);
      std::vector<std::uint64_t> sizes;
      for (const Part& part : parts) {
        if (has_share(std::pair(part.owner, left[part.owner]))) sizes.push_back(padded(part.bytes));
      }
      if (!sizes.empty()) {
        const auto [least, most] = std::ranges::minmax(sizes);
        EXPECT_LE(most - least, padded(largest));
      }
      for (const Part& part : parts) left[part.owner] -= padded(part.bytes);
    }
  }
}

TEST(Plan, FillsItsBuckets) {
  std::mt19937_64 random(1);
  const Catalog catalog = make_catalog(random_tensors(random, 4, 200, 2000));
  const std::uint64_t bucket = 64 * kStep;
  const Plan plan = *make_plan(catalog, make_ranks(1, 4), small_options(bucket, 16 * kStep));
  for (std::size_t b = 0; b + 4 < plan.buckets.size(); ++b) {
    EXPECT_GT(plan.buckets[b].bytes, bucket - 2 * 2048);
  }
}

TEST(Plan, SpreadsABucketOverTheHosts) {
  // Host 0 has ranks 0 to 3 and host 1 ranks 4 to 7; of two owners at a time, one is on each.
  std::mt19937_64 random(2);
  const Catalog catalog = make_catalog(random_tensors(random, 8, 20, 8 * kStep));
  const std::vector<PlanRank> ranks = make_ranks(2, 4);
  const Plan plan = *make_plan(catalog, ranks, small_options(32 * kStep, 16 * kStep));
  for (std::size_t b = 0; b + 8 < plan.buckets.size(); ++b) {
    std::set<int> hosts;
    for (const Part& part : plan.parts_of(plan.buckets[b])) hosts.insert(ranks[part.owner].host);
    EXPECT_EQ(hosts.size(), 2u) << "bucket " << b;
  }
}

TEST(Plan, SharesReplicasEvenly) {
  Held held(4);
  for (int i = 0; i < 400; ++i) held[0].push_back({name_in_group(i, 0), 1000});
  held[1] = held[2] = held[3] = held[0];
  held[3].push_back({name_in_group(1000, 0), 60000});  // rank 3 has something of its own
  const Plan plan =
      *make_plan(make_catalog(held), make_ranks(2, 2), small_options(1 << 16, 1 << 13));
  for (const auto& [owner, bytes] : bytes_by_owner(plan)) {
    EXPECT_NEAR(static_cast<double>(bytes), 117000, 10000) << "owner " << owner;
  }
}

TEST(Plan, TakesMoreFromFasterSources) {
  Held held(2);
  for (int i = 0; i < 900; ++i) held[0].push_back({name_in_group(i, 0), 1024});
  held[1] = held[0];
  std::vector<PlanRank> ranks = make_ranks(2, 1);
  ranks[1].bandwidth = 2;
  const Plan plan = *make_plan(make_catalog(held), ranks, small_options(1 << 16, 1 << 13));
  auto bytes = bytes_by_owner(plan);
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 2, 0.2);
}

TEST(Plan, PrefersSourcesNearTheRecipients) {
  Held held(6);
  for (int i = 0; i < 100; ++i) held[1].push_back({name_in_group(i, 0), 1024});
  const PlanOptions options = small_options(1 << 14, 1 << 12);
  std::vector<PlanRank> ranks = make_ranks(3, 2);
  for (PlanRank& rank : ranks) rank.recipient = false;
  const auto owners = [&] {
    std::vector<int> list;
    for (const auto& [owner, bytes] :
         bytes_by_owner(*make_plan(make_catalog(held), ranks, options)))
      list.push_back(owner);
    return list;
  };
  held[2] = held[3] = held[4] = held[1];
  ranks[3].recipient = true;
  EXPECT_THAT(owners(), ElementsAre(3)) << "the recipient has it all";
  held[3].clear();
  EXPECT_THAT(owners(), ElementsAre(2)) << "its neighbour does";
  held[2].clear();
  EXPECT_THAT(owners(), ElementsAre(1, 4)) << "nobody near does";
}

TEST(Plan, EntersHostsThroughAllTheirRecipients) {
  std::mt19937_64 random(3);
  const Catalog catalog = make_catalog(random_tensors(random, 8, 50, 4 * kStep));
  std::vector<PlanRank> ranks = make_ranks(2, 4);
  ranks[5].bandwidth = 3;
  const Plan plan = *make_plan(catalog, ranks, small_options(32 * kStep, 8 * kStep));
  std::map<int, double> entered;
  for (const Part& part : plan.parts) {
    for (const Stop& stop : plan.stops_of(part)) {
      if (stop.rank != part.owner) entered[stop.rank] += static_cast<double>(part.bytes);
    }
  }
  EXPECT_EQ(entered.size(), 8u);
  EXPECT_NEAR(entered[0] / entered[1], 1, 0.1);
  EXPECT_NEAR(entered[5] / entered[6], 3, 0.3);
}

TEST(Plan, GivesALargeTensorABucketOfItsOwn) {
  const Catalog catalog = make_catalog(
      {{{name_in_group(0, 0), 100}, {name_in_group(1, 0), 6000}, {name_in_group(2, 0), 100}},
       {{name_in_group(3, 0), 100}}});
  PlanOptions options = small_options(4096, 1024);
  const Plan plan = *make_plan(catalog, make_ranks(1, 2), options);
  const auto large =
      std::ranges::find_if(plan.buckets, [](const Bucket& b) { return b.bytes > 4096; });
  ASSERT_NE(large, plan.buckets.end());
  EXPECT_EQ(large->tensor_count, 1u);
  EXPECT_EQ(large->bytes, 6000u);
}

TEST(Plan, CopiesAPoolInOnePiecePerPart) {
  std::mt19937_64 random(4);
  const Plan plan = *make_plan(make_catalog(random_tensors(random, 2, 100, 1000)), make_ranks(1, 2),
                               small_options(1 << 14, 1 << 13));
  EXPECT_EQ(plan.ranges.size(), plan.parts.size());
}

TEST(Plan, KeepsRunsOfReplicasTogether) {
  Held held(2);
  for (int i = 0; i < 1000; ++i) held[0].push_back({name_in_group(i, 0), 256});
  held[1] = held[0];
  const Plan plan =
      *make_plan(make_catalog(held), make_ranks(1, 2), small_options(1 << 15, 1 << 12));
  EXPECT_LT(plan.ranges.size(), 100u) << "sources change every few KiB, not with every tensor";
}

TEST(Plan, OfNothingIsEmpty) {
  const auto plan = make_plan(make_catalog({{}, {}}), make_ranks(1, 2), PlanOptions{});
  ASSERT_TRUE(plan.is_ok());
  EXPECT_TRUE(plan->buckets.empty());
  EXPECT_TRUE(make_plan(make_catalog({}), make_ranks(1, 2), PlanOptions{})->buckets.empty());
}

TEST(Plan, AnnouncesTensorsWithoutBytes) {
  const Catalog catalog = make_catalog({{{"a", 0}, {"b", 0}}, {{"c", 0}, {"d", 10}, {"e", 0}}});
  const Plan plan = *make_plan(catalog, make_ranks(1, 2), small_options(1024, 512));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.tensors.size(), 5u);
}

void expect_refused(const Catalog& catalog, const std::vector<PlanRank>& ranks,
                    const PlanOptions& options, const char* text) {
  const auto plan = make_plan(catalog, ranks, options);
  ASSERT_FALSE(plan.is_ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr(text));
}

TEST(Plan, RefusesWhatCannotBe) {
  const Catalog catalog = make_catalog({{{"a", 5000}}, {}});
  const std::vector<PlanRank> ranks = make_ranks(1, 2);
  const PlanOptions good = small_options(4096, 1024);
  ASSERT_TRUE(make_plan(catalog, ranks, good).is_ok());

  std::vector<PlanRank> bad = ranks;
  bad[0].recipient = bad[1].recipient = false;
  expect_refused(catalog, bad, good, "no rank is a recipient");
  bad = ranks;
  bad[1].host = 2;
  expect_refused(catalog, bad, good, "rank 1 is on host 2");
  bad = ranks;
  bad[1].bandwidth = 0;
  expect_refused(catalog, bad, good, "rank 1 has a network device of bandwidth 0");
  expect_refused(catalog, make_ranks(1, 1), good, "only 1 are described");

  expect_refused(catalog, ranks, small_options(2048, 1024), "tensor \"a\" of rank 0 has 5000");
  PlanOptions options = good;
  options.bucket_bytes = 4097;
  expect_refused(catalog, ranks, options, "more than half of the ring");
  options = good;
  options.chunk_bytes = 0;
  expect_refused(catalog, ranks, options, "more than zero");
  options = good;
  options.cross_chunk_bytes = 2048;
  expect_refused(catalog, ranks, options, "larger than those");
  options = good;
  options.staging_chunks = 1;
  expect_refused(catalog, ranks, options, "at least");
}

TEST(Plan, HasAnotherFingerprintWhenAnythingDiffers) {
  const Held held = {{{"a", 1000}, {"b", 300}}, {{"c", 2000}}};
  const std::vector<PlanRank> ranks = make_ranks(2, 1);
  const PlanOptions options = small_options(4096, 1024);
  const auto fingerprint = [](const Held& h, const auto& r, const PlanOptions& o) {
    return make_plan(make_catalog(h), r, o)->fingerprint();
  };
  std::set<std::uint64_t> all = {fingerprint(held, ranks, options)};
  EXPECT_TRUE(all.contains(fingerprint(held, ranks, options)));

  Held other = held;
  other[0][0].name = "z";
  EXPECT_TRUE(all.insert(fingerprint(other, ranks, options)).second) << "a name";
  other = held;
  other[0][0].bytes = 1001;
  EXPECT_TRUE(all.insert(fingerprint(other, ranks, options)).second) << "a size";
  std::vector<PlanRank> fewer = ranks;
  fewer[1].recipient = false;
  EXPECT_TRUE(all.insert(fingerprint(held, fewer, options)).second) << "a recipient";
  EXPECT_TRUE(all.insert(fingerprint(held, make_ranks(1, 2), options)).second) << "a host";
  for (const auto change :
       {+[](PlanOptions& o) { o.ring_bytes += 256; },
        +[](PlanOptions& o) { o.bucket_bytes -= 256; }, +[](PlanOptions& o) { o.chunk_bytes += 1; },
        +[](PlanOptions& o) { o.cross_chunk_bytes -= 1; },
        +[](PlanOptions& o) { o.staging_chunks += 1; }, +[](PlanOptions& o) { o.serial = true; },
        +[](PlanOptions& o) { o.sharing = RingSharing::kPerRank; }}) {
    PlanOptions changed = options;
    change(changed);
    EXPECT_TRUE(all.insert(fingerprint(held, ranks, changed)).second) << all.size();
  }

  Plan plan = *make_plan(make_catalog(held), ranks, options);
  for (const auto change :
       {+[](Plan& p) { ++p.buckets[0].ring_offset; }, +[](Plan& p) { ++p.parts[0].owner; },
        +[](Plan& p) { std::swap(p.tensors[0].tensor, p.tensors[1].tensor); },
        +[](Plan& p) { ++p.ranges[0].source_offset; }, +[](Plan& p) { ++p.places[0].ring_offset; },
        +[](Plan& p) { std::swap(p.stops[0], p.stops[1]); },
        +[](Plan& p) { p.recipient_sets[0].pop_back(); }, +[](Plan& p) { ++p.layouts; }}) {
    Plan changed = plan;
    change(changed);
    EXPECT_TRUE(all.insert(changed.fingerprint()).second) << all.size();
  }
}

}  // namespace
}  // namespace ckpt
