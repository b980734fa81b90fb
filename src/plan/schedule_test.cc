#include "plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/test_topology.h"

namespace ckpt {
namespace {

using ::testing::ElementsAre;
using testing::make_catalog;
using testing::make_ranks;
using testing::name_in_group;

PlanOptions options_of(RingSharing sharing) {
  PlanOptions options;
  options.ring_bytes = 16384;
  options.bucket_bytes = 8192;
  options.chunk_bytes = 2048;
  options.cross_chunk_bytes = 512;
  options.sharing = sharing;
  return options;
}

/// One owner of two tensors that make one part of 3000 bytes.
Catalog one_part(int owner, int world_size) {
  std::vector<std::vector<testing::TestTensor>> held(world_size);
  held[owner] = {{name_in_group(0, 0), 1000}, {name_in_group(1, 0), 1976}};
  return make_catalog(held);
}

std::vector<std::uint64_t> sizes(const auto& chunks) {
  std::vector<std::uint64_t> out;
  for (const auto& chunk : chunks) out.push_back(chunk.bytes);
  return out;
}

TEST(Schedule, CutsFillByChunksAndReceiveBySmallerOnes) {
  const auto ranks = make_ranks(3, 1);
  const Plan plan = *make_plan(one_part(0, 3), ranks, options_of(RingSharing::kPerHost));
  const Schedule owner = make_schedule(plan, ranks, 0);
  EXPECT_THAT(sizes(owner.fill), ElementsAre(2048, 952));
  EXPECT_TRUE(owner.receive.empty());
  EXPECT_TRUE(owner.pull.empty());
  ASSERT_EQ(owner.buckets.size(), 1u);
  ASSERT_EQ(owner.buckets[0].arrived.size(), 1u);
  EXPECT_EQ(owner.buckets[0].arrived[0].chunks, 2u);
  EXPECT_TRUE(owner.buckets[0].forwarded.empty()) << "the next host reads the pool";

  const Schedule second = make_schedule(plan, ranks, 1);
  ASSERT_EQ(second.receive.size(), 6u);
  for (const IncomingChunk& in : second.receive) {
    EXPECT_TRUE(in.from_pool);
    EXPECT_EQ(in.source, 0);
    EXPECT_EQ(in.next_stop, 2);
  }
  ASSERT_EQ(second.buckets[0].forwarded.size(), 1u);
  EXPECT_EQ(second.buckets[0].forwarded[0].to, 2);
  EXPECT_EQ(second.buckets[0].forwarded[0].chunks, 6u);

  const Schedule third = make_schedule(plan, ranks, 2);
  ASSERT_EQ(third.receive.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_FALSE(third.receive[i].from_pool);
    EXPECT_EQ(third.receive[i].source, 1);
    EXPECT_EQ(third.receive[i].source_ready, i + 1);
    EXPECT_EQ(third.receive[i].next_stop, -1);
    EXPECT_EQ(third.receive[i].chunk.part_offset, second.receive[i].chunk.part_offset);
  }
}

TEST(Schedule, LeavesAnOwnerThatIsNoRecipientAlone) {
  auto ranks = make_ranks(2, 2);
  ranks[0].recipient = false;
  const Plan plan = *make_plan(one_part(0, 4), ranks, options_of(RingSharing::kPerHost));
  const Schedule owner = make_schedule(plan, ranks, 0);
  EXPECT_TRUE(owner.fill.empty());
  EXPECT_TRUE(owner.receive.empty());
  const Schedule neighbour = make_schedule(plan, ranks, 1);
  ASSERT_EQ(neighbour.receive.size(), 6u);
  EXPECT_TRUE(neighbour.receive[0].from_pool);
  EXPECT_EQ(neighbour.buckets[0].forwarded.size(), 1u)
      << "the next host reads the neighbour's ring";
}

TEST(Schedule, LetsEveryRecipientOfAHostPullEverything) {
  const auto ranks = make_ranks(2, 2);
  const Plan plan = *make_plan(one_part(0, 4), ranks, options_of(RingSharing::kPerRank));
  for (int rank = 0; rank < 2; ++rank) {
    const Schedule s = make_schedule(plan, ranks, rank);
    EXPECT_FALSE(s.direct);
    ASSERT_EQ(s.pull.size(), 2u);
    EXPECT_EQ(s.pull[1].rank, 0);
    EXPECT_EQ(s.pull[1].kind, StreamKind::kFill);
    EXPECT_EQ(s.pull[1].sequence, 1u);
    EXPECT_EQ(s.buckets[0].pulled, 2u);
    EXPECT_EQ(s.fill_slots, rank == 0 ? 4u : 0u);
  }
  EXPECT_EQ(make_schedule(plan, ranks, 2).pull.size(), 6u);
}

TEST(Schedule, SharesStagingBetweenFillAndReceive) {
  const auto ranks = make_ranks(2, 2);
  std::vector<std::vector<testing::TestTensor>> held(4);
  for (int i = 0; i < 80; ++i) held[i % 4].push_back({name_in_group(i, 0), 1000});
  const Plan plan = *make_plan(make_catalog(held), ranks, options_of(RingSharing::kPerRank));
  const Schedule s = make_schedule(plan, ranks, 0);
  EXPECT_EQ(s.fill_slots, 3u);
  EXPECT_EQ(s.receive_slots, 4u) << "one chunk of 2048 bytes";
}

TEST(Schedule, GoesStraightIntoTheRingOfALoneRecipient) {
  auto ranks = make_ranks(2, 2);
  ranks[3].recipient = false;
  const Plan plan = *make_plan(one_part(0, 4), ranks, options_of(RingSharing::kPerRank));
  const Schedule s = make_schedule(plan, ranks, 2);
  EXPECT_TRUE(s.direct);
  EXPECT_TRUE(s.pull.empty());
  EXPECT_EQ(s.buckets[0].arrived.size(), 1u);
  EXPECT_EQ(s.receive_slots, 0u);
  EXPECT_FALSE(make_schedule(plan, ranks, 0).direct);
}

TEST(Schedule, AdvancesAllStreamsOfAHostTogether) {
  const auto ranks = make_ranks(1, 2);
  const Catalog catalog = make_catalog({{{"a", 4096}}, {{"b", 4096}}});
  const Plan plan = *make_plan(catalog, ranks, options_of(RingSharing::kPerRank));
  ASSERT_EQ(plan.buckets.size(), 1u);
  std::vector<int> order;
  for (const Pull& pull : make_schedule(plan, ranks, 1).pull) order.push_back(pull.rank);
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1));
}

TEST(Schedule, KeepsToOneOrderWhereTheStagingHoldsOneRow) {
  const auto ranks = make_ranks(4, 2);
  std::vector<std::vector<testing::TestTensor>> held(8);
  for (std::size_t rank = 0; rank < 8; rank += 2)
    held[rank] = {{name_in_group(static_cast<int>(rank), 0), 1024}};
  PlanOptions options = options_of(RingSharing::kPerRank);
  const auto owners_in_order = [&](std::uint64_t cross_chunk_bytes) {
    options.cross_chunk_bytes = cross_chunk_bytes;
    const Plan plan = *make_plan(make_catalog(held), ranks, options);
    std::vector<int> owners;
    for (const Pull& pull : make_schedule(plan, ranks, 4).pull) {
      if (pull.kind == StreamKind::kReceive && pull.chunk.part_offset == 0)
        owners.push_back(plan.parts[pull.chunk.part].owner);
    }
    return owners;
  };
  EXPECT_THAT(owners_in_order(512), ElementsAre(2, 0, 6)) << "the nearest first";
  EXPECT_THAT(owners_in_order(1024), ElementsAre(0, 2, 6)) << "the order of parts";
}

TEST(Schedule, TakesNearOwnersBeforeFarOnes) {
  using Pairs = std::vector<std::pair<int, std::uint64_t>>;
  auto ranks = make_ranks(4, 1);
  std::vector<std::vector<testing::TestTensor>> held(4);
  for (std::size_t rank = 0; rank < 4; ++rank) held[rank] = {{name_in_group(int(rank), 0), 1024}};
  const Plan plan = *make_plan(make_catalog(held), ranks, options_of(RingSharing::kPerHost));
  ASSERT_EQ(plan.buckets.size(), 1u);
  for (int rank = 0; rank < 4; ++rank) {
    Pairs order;
    for (const IncomingChunk& in : make_schedule(plan, ranks, rank).receive) {
      order.emplace_back((rank + 4 - plan.parts[in.chunk.part].owner) % 4,
                         in.chunk.part_offset / 512);
    }
    // By hops and chunk: what is taken after more hops has lain at the neighbour for a row.
    EXPECT_THAT(order,
                ::testing::ElementsAreArray(Pairs{{1, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 0}, {3, 1}}))
        << "rank " << rank;
  }
}

TEST(ChunkRanges, CutsTheRangesOfThePart) {
  const std::vector<std::vector<testing::TestTensor>> held = {{{"a", 1000}, {"b", 1000}}};
  const auto ranks = make_ranks(1, 1);
  // In a file the second tensor follows the first one at once.
  const Plan plan = *make_plan(make_catalog(held, 1), ranks, options_of(RingSharing::kPerHost));
  const auto pieces = chunk_ranges(plan, {0, 0, 500, 1000});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].source_offset, 500u);
  EXPECT_EQ(pieces[0].part_offset, 500u);
  EXPECT_EQ(pieces[0].bytes, 500u);
  EXPECT_EQ(pieces[1].source_offset, 1000u);
  EXPECT_EQ(pieces[1].part_offset, 1024u);
  EXPECT_EQ(pieces[1].bytes, 476u);
}

}  // namespace
}  // namespace ckpt
