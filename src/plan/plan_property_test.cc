// What holds for every plan, on seeded random jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/test_topology.h"
#include "plan/weights.h"

namespace ckpt {
namespace {

using testing::random_topology;
using testing::Topology;

class EveryPlan : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Result<Plan> made = topology_.plan();
    ASSERT_TRUE(made.is_ok()) << topology_.text << ": " << made.status().to_string();
    plan_ = std::move(made).value();
    bucket_limit_ = plan_.options.bucket_bytes;
  }

  std::span<const CatalogTensor> tensors() const { return topology_.catalog.tensors(); }
  std::uint64_t bytes_of(std::uint32_t tensor) const { return tensors()[tensor].info->bytes; }
  const Replica* replica_at(std::uint32_t tensor, int rank) const {
    const auto replicas = topology_.catalog.replicas(tensors()[tensor]);
    const auto at = std::ranges::find(replicas, rank, &Replica::rank);
    return at == replicas.end() ? nullptr : &*at;
  }
  bool serves(int host) const {
    return std::ranges::any_of(topology_.ranks,
                               [&](const PlanRank& r) { return r.recipient && r.host == host; });
  }

  /// Calls visit(part, tensor, offset in the part) for all tensors in the plan's order.
  template <typename Visit>
  void for_each_tensor(Visit visit) const {
    for (const Part& part : plan_.parts) {
      const std::uint64_t begin = plan_.places_of(part)[0].ring_offset;
      for (const BucketTensor& tensor : plan_.tensors_of(part)) {
        visit(part, tensor.tensor, tensor.ring_offset - begin);
      }
    }
  }

  const Topology topology_ = random_topology(static_cast<std::uint64_t>(GetParam()));
  Plan plan_;
  std::uint64_t bucket_limit_ = 0;
};

TEST_P(EveryPlan, BringsEachByteOfEachTensorOnceFromAnOwner) {
  SCOPED_TRACE(topology_.text);
  std::vector<int> seen(tensors().size(), 0);
  for_each_tensor([&](const Part& part, std::uint32_t tensor, std::uint64_t offset) {
    ++seen[tensor];
    const Replica* replica = replica_at(tensor, part.owner);
    ASSERT_NE(replica, nullptr) << "owner " << part.owner << " does not hold " << tensor;
    const std::uint64_t bytes = bytes_of(tensor);
    if (bytes == 0) return;
    ASSERT_LE(offset + bytes, part.bytes);
    const auto ranges = plan_.ranges_of(part);
    const auto covers = [&](const SourceRange& r) {
      return r.part_offset <= offset && offset + bytes <= r.part_offset + r.bytes;
    };
    ASSERT_EQ(std::ranges::count_if(ranges, covers), 1);
    const SourceRange& range = *std::ranges::find_if(ranges, covers);
    EXPECT_EQ(range.source_offset + (offset - range.part_offset), replica->offset);
  });
  EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
}

TEST_P(EveryPlan, CopiesInAsFewPiecesAsPossible) {
  SCOPED_TRACE(topology_.text);
  for (const Part& part : plan_.parts) {
    const auto ranges = plan_.ranges_of(part);
    ASSERT_EQ(ranges.empty(), part.bytes == 0);
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      const std::uint64_t end = ranges[i - 1].part_offset + ranges[i - 1].bytes;
      const std::uint64_t source_end = ranges[i - 1].source_offset + ranges[i - 1].bytes;
      ASSERT_LE(end, ranges[i].part_offset);
      ASSERT_LE(source_end, ranges[i].source_offset);
      const std::uint64_t gap = ranges[i].part_offset - end;
      ASSERT_LT(gap, kRingAlignment);
      EXPECT_NE(gap, ranges[i].source_offset - source_end) << "could be one copy";
    }
    if (ranges.empty()) continue;
    EXPECT_EQ(ranges.back().part_offset + ranges.back().bytes, part.bytes);
  }
}

TEST_P(EveryPlan, LaysPartsAndTensorsOutInTheirBucket) {
  SCOPED_TRACE(topology_.text);
  std::uint32_t next_part = 0, next_tensor = 0;
  for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    EXPECT_EQ(bucket.first_part, next_part);
    EXPECT_EQ(bucket.first_tensor, next_tensor);
    next_part += bucket.part_count;
    for (const Part& part : plan_.parts_of(bucket)) {
      EXPECT_EQ(part.first_tensor, next_tensor);
      next_tensor += part.tensor_count;
    }
    EXPECT_EQ(bucket.first_tensor + bucket.tensor_count, next_tensor);
    EXPECT_GT(bucket.tensor_count, 0u);
    EXPECT_LE(bucket.ring_offset + bucket.bytes, plan_.options.ring_bytes);
    std::uint64_t end = bucket.ring_offset;
    for (const Part& part : plan_.parts_of(bucket)) {
      EXPECT_EQ(part.bucket, b);
      const auto places = plan_.places_of(part);
      ASSERT_EQ(places.size(), 1u);
      EXPECT_EQ(places[0].ring_offset, padded(end)) << "parts follow one another";
      end = places[0].ring_offset + part.bytes;
    }
    EXPECT_EQ(end, bucket.ring_offset + bucket.bytes);
    end = bucket.ring_offset;
    for (const BucketTensor& tensor : plan_.tensors_of(bucket)) {
      EXPECT_EQ(tensor.ring_offset % kRingAlignment, 0u);
      EXPECT_EQ(tensor.ring_offset, padded(end)) << "tensors follow one another";
      end = tensor.ring_offset + bytes_of(tensor.tensor);
    }
  }
  EXPECT_EQ(next_part, plan_.parts.size());
  EXPECT_EQ(next_tensor, plan_.tensors.size());
}

TEST_P(EveryPlan, KeepsToTheBucketSize) {
  SCOPED_TRACE(topology_.text);
  // More where links differ, see bucket_drafts.h.
  const std::uint64_t most_owners =
      std::max<std::uint64_t>(1, bucket_limit_ / topology_.options.cross_chunk_bytes);
  for (const Bucket& bucket : plan_.buckets) {
    std::set<int> owners;
    for (const Part& part : plan_.parts_of(bucket)) owners.insert(part.owner);
    EXPECT_LE(owners.size(), most_owners);
    if (padded(bucket.bytes) <= bucket_limit_) continue;
    const auto with_bytes = [&](const BucketTensor& t) { return bytes_of(t.tensor) > 0; };
    EXPECT_EQ(std::ranges::count_if(plan_.tensors_of(bucket), with_bytes), 1)
        << "only a tensor that is larger than a bucket has a larger one, alone";
  }
}

TEST_P(EveryPlan, FollowsTheOrderOfEachOwner) {
  SCOPED_TRACE(topology_.text);
  std::map<int, std::vector<std::uint32_t>> given;
  for_each_tensor([&](const Part& part, std::uint32_t tensor, std::uint64_t) {
    given[part.owner].push_back(tensor);
  });
  for (const auto& [owner, list] : given) {
    const auto layout = topology_.catalog.tensors_of(owner);
    auto at = layout.begin();
    for (const std::uint32_t tensor : list) {
      at = std::find(at, layout.end(), tensor);
      ASSERT_NE(at, layout.end()) << "owner " << owner << ", tensor " << tensor;
    }
  }
}

TEST_P(EveryPlan, KeepsGroupsTogether) {
  SCOPED_TRACE(topology_.text);
  struct Run {
    std::uint64_t group, bytes;
    std::set<std::uint32_t> buckets;
  };
  std::map<int, std::vector<Run>> runs;
  for_each_tensor([&](const Part& part, std::uint32_t tensor, std::uint64_t) {
    std::vector<Run>& list = runs[part.owner];
    const std::uint64_t group = tensors()[tensor].group;
    if (list.empty() || list.back().group != group) list.push_back({group, 0, {}});
    list.back().bytes += padded(bytes_of(tensor));
    list.back().buckets.insert(part.bucket);
  });
  for (const auto& [owner, list] : runs) {
    for (const Run& run : list) {
      if (run.bytes <= bucket_limit_) {
        EXPECT_EQ(run.buckets.size(), 1u) << "owner " << owner;
      }
    }
  }
}

TEST_P(EveryPlan, ReusesRingSpaceOnlyAfterWhatLayThere) {
  SCOPED_TRACE(topology_.text);
  const auto overlap = [&](const Bucket& a, const Bucket& b) {
    return a.bytes > 0 && b.bytes > 0 && a.ring_offset < b.ring_offset + padded(b.bytes) &&
           b.ring_offset < a.ring_offset + padded(a.bytes);
  };
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(plan_.buckets.size()); ++i) {
    const Bucket& bucket = plan_.buckets[i];
    std::int32_t last = -1;
    for (std::int32_t j = 0; j < i; ++j) {
      if (overlap(bucket, plan_.buckets[j])) last = j;
    }
    if (plan_.options.serial) {
      EXPECT_EQ(bucket.reuse_after, i - 1);
      continue;
    }
    EXPECT_EQ(bucket.reuse_after, last) << "bucket " << i;
    if (i > 0 && bucket.bytes <= bucket_limit_ && plan_.buckets[i - 1].bytes <= bucket_limit_) {
      EXPECT_LT(bucket.reuse_after, i - 1) << "two buckets are in the ring at once";
    }
  }
}

TEST_P(EveryPlan, StopsOnceAtEveryHostWithRecipients) {
  SCOPED_TRACE(topology_.text);
  std::set<int> hosts;
  std::vector<int> recipients;
  for (int rank = 0; rank < static_cast<int>(topology_.ranks.size()); ++rank) {
    if (!topology_.ranks[rank].recipient) continue;
    hosts.insert(topology_.ranks[rank].host);
    recipients.push_back(rank);
  }
  for (const Part& part : plan_.parts) {
    EXPECT_EQ(plan_.recipient_sets[plan_.places_of(part)[0].recipients], recipients);
    const auto stops = plan_.stops_of(part);
    const PlanRank& owner = topology_.ranks[part.owner];
    std::set<int> visited;
    for (const Stop& stop : stops) {
      EXPECT_TRUE(visited.insert(stop.host).second);
      EXPECT_TRUE(topology_.ranks[stop.rank].recipient);
      EXPECT_EQ(topology_.ranks[stop.rank].host, stop.host);
    }
    EXPECT_EQ(visited, hosts);
    EXPECT_TRUE(stops[0].host == owner.host || !serves(owner.host)) << "no detour";
    EXPECT_TRUE(stops[0].rank == part.owner || !owner.recipient);
    // After the first one, hosts follow in ring order.
    for (std::size_t i = 1; i < stops.size(); ++i) {
      auto next = hosts.upper_bound(stops[i - 1].host);
      if (next == hosts.end()) next = hosts.begin();
      EXPECT_EQ(stops[i].host, *next);
    }
  }
}

TEST_P(EveryPlan, IsTheSameOnEveryRank) {
  const Topology again = random_topology(static_cast<std::uint64_t>(GetParam()));
  EXPECT_EQ(plan_.fingerprint(), again.plan()->fingerprint());
}

INSTANTIATE_TEST_SUITE_P(Seeds, EveryPlan, ::testing::Range(0, 300));

}  // namespace
}  // namespace ckpt
