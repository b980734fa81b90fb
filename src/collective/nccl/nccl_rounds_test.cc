#include "collective/nccl/nccl_rounds.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "collective/testing/must.h"
#include "plan/test_topology.h"

namespace ckpt {
namespace {

using testing::make_catalog;
using testing::make_ranks;
using testing::must;
using testing::name_in_group;
using testing::Topology;

void expect_sound(const Plan& plan, const Schedule& schedule) {
  std::map<int, std::uint64_t> next;          // of each stream
  std::map<std::uint32_t, std::size_t> left;  // chunks of each bucket
  std::size_t fills = 0;
  for (const Pull& pull : schedule.pull) {
    if (pull.kind != StreamKind::kFill) continue;
    ++left[pull.chunk.bucket];
    ++fills;
  }
  std::size_t seen = 0;
  for (const NcclRound& round : nccl_rounds(plan, schedule)) {
    ASSERT_FALSE(round.empty());
    std::set<int> ranks;
    for (const std::uint32_t index : round) {
      const Pull& pull = schedule.pull[index];
      ASSERT_EQ(pull.kind, StreamKind::kFill);
      EXPECT_TRUE(ranks.insert(pull.rank).second) << "two chunks of rank " << pull.rank;
      EXPECT_EQ(pull.sequence, next[pull.rank]++) << "the stream of rank " << pull.rank;
      // Its ring space must become free without this round or a later one.
      const std::int32_t before = plan.buckets[pull.chunk.bucket].reuse_after;
      for (const auto& [bucket, chunks] : left) {
        if (static_cast<std::int32_t>(bucket) > before) break;
        EXPECT_EQ(chunks, 0u) << "of bucket " << bucket;
      }
    }
    for (const std::uint32_t index : round) --left[schedule.pull[index].chunk.bucket];
    seen += round.size();
  }
  EXPECT_EQ(seen, fills);
}

TEST(NcclRounds, GoThroughEveryStreamInOrderAndNeverWaitForALaterRound) {
  int with_rounds = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Topology topology = testing::random_topology(seed);
    topology.options.sharing = RingSharing::kPerRank;
    SCOPED_TRACE(seed);
    const auto plan = topology.plan();
    if (!plan) continue;
    for (int rank = 0; rank < static_cast<int>(topology.ranks.size()); ++rank) {
      const Schedule schedule = make_schedule(*plan, topology.ranks, rank);
      expect_sound(*plan, schedule);
      with_rounds += !nccl_rounds(*plan, schedule).empty();
    }
  }
  EXPECT_GT(with_rounds, 100);
}

TEST(NcclRounds, AreTheSameOnAllRanksOfAHost) {
  const Topology topology = testing::random_topology(7);
  const Plan plan = must(topology.plan());
  std::map<int, std::vector<NcclRound>> by_host;
  for (int rank = 0; rank < static_cast<int>(topology.ranks.size()); ++rank) {
    const PlanRank& of_rank = topology.ranks[static_cast<std::size_t>(rank)];
    if (!of_rank.recipient) continue;
    const auto rounds = nccl_rounds(plan, make_schedule(plan, topology.ranks, rank));
    EXPECT_EQ(by_host.try_emplace(of_rank.host, rounds).first->second, rounds);
  }
}

TEST(NcclRounds, AllOwnersSendAtOnceWhereTheirSharesAreEqual) {
  std::vector<std::vector<testing::TestTensor>> held(2);
  for (int i = 0; i < 24; ++i)
    held[static_cast<std::size_t>(i % 2)].push_back({name_in_group(i, 0), 512});
  PlanOptions options;
  options.ring_bytes = 8192;
  options.bucket_bytes = 4096;
  options.chunk_bytes = 512;
  options.cross_chunk_bytes = 512;
  options.sharing = RingSharing::kPerRank;
  const Topology topology{make_catalog(held), make_ranks(1, 2), options, ""};
  const Plan plan = must(topology.plan());
  const auto rounds = nccl_rounds(plan, make_schedule(plan, topology.ranks, 0));
  EXPECT_EQ(rounds.size(), 12u);
  for (const NcclRound& round : rounds) EXPECT_EQ(round.size(), 2u);
}

}  // namespace
}  // namespace ckpt
