#include "collective/group/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "control/hub.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(60s); }

/// A hub and the ranks of a group as threads of this process.
class Ranks {
 public:
  explicit Ranks(int size) : all_(static_cast<std::size_t>(size)), groups_(all_.size()) {
    std::iota(all_.begin(), all_.end(), 0);
    hub_ = std::move(Hub::start({.bind_host = "127.0.0.1"}).value());
    on(all_, [&](int rank) {
      auto joined = ProcessGroup::join(
          {.hub = hub_->address(), .rank = rank, .world_size = size, .job = "group", .host_id = {}},
          soon());
      ASSERT_TRUE(joined) << joined.status().to_string();
      groups_[static_cast<std::size_t>(rank)] = std::move(*joined);
    });
  }

  const std::vector<int>& all() const { return all_; }
  ProcessGroup& operator[](int rank) { return *groups_[static_cast<std::size_t>(rank)]; }
  void drop(int rank) { groups_[static_cast<std::size_t>(rank)].reset(); }

  template <typename Body>
  void on(const std::vector<int>& ranks, const Body& body) {
    std::vector<std::jthread> threads;
    for (const int rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  }

 private:
  std::vector<int> all_;
  std::unique_ptr<Hub> hub_;
  std::vector<std::unique_ptr<ProcessGroup>> groups_;
};

std::vector<std::byte> pattern(std::size_t size, int seed) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) {
    out[i] = static_cast<std::byte>(i * 31 + (i >> 8) + static_cast<std::size_t>(seed));
  }
  return out;
}

class ProcessGroupSizes : public ::testing::TestWithParam<std::tuple<int, std::size_t>> {};

TEST_P(ProcessGroupSizes, EveryRankHasTheBytesOfTheSource) {
  const auto [count, size] = GetParam();
  Ranks ranks(count);
  for (const int source : {0, count - 1}) {
    ranks.on(ranks.all(), [&, size = size](int rank) {
      AbortSignal abort;
      auto memory = pattern(size, rank);
      const Status status = ranks[rank].broadcast("t", ranks.all(), source, memory, soon(), abort);
      EXPECT_TRUE(status) << status.to_string();
      EXPECT_EQ(memory, pattern(size, source)) << "rank " << rank;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Broadcast, ProcessGroupSizes,
                         ::testing::Values(std::tuple(1, 100'000), std::tuple(2, 0),
                                           std::tuple(2, 16 << 10), std::tuple(2, 3'000'001),
                                           std::tuple(5, 1'000'000)));

TEST(ProcessGroup, SomeRanksDoTheirsWhileOthersDoTheirs) {
  Ranks ranks(4);
  const std::vector<int> even = {0, 2}, odd = {3, 1};
  ranks.on(ranks.all(), [&](int rank) {
    AbortSignal abort;
    const auto& group = rank % 2 == 0 ? even : odd;
    const char* tag = rank % 2 == 0 ? "even" : "odd";
    auto memory = pattern(200'000, rank);
    EXPECT_TRUE(ranks[rank].broadcast(tag, group, group[0], memory, soon(), abort));
    EXPECT_EQ(memory, pattern(200'000, group[0]));
    EXPECT_TRUE(ranks[rank].barrier("all", ranks.all(), soon(), abort));
    const auto mine = pattern(8, rank);
    const auto gathered = ranks[rank].all_gather(tag, group, mine, soon(), abort);
    ASSERT_TRUE(gathered) << gathered.status().to_string();
    EXPECT_EQ((*gathered)[0], pattern(8, group[0]));
    EXPECT_EQ((*gathered)[1], pattern(8, group[1]));
  });
}

TEST(ProcessGroup, SizesThatDifferAreAnErrorOfAllRanks) {
  Ranks ranks(3);
  std::vector<Status> outcomes(3);
  ranks.on(ranks.all(), [&](int rank) {
    AbortSignal abort;
    auto memory = pattern(rank == 2 ? 50'000 : 100'000, rank);
    outcomes[static_cast<std::size_t>(rank)] =
        ranks[rank].broadcast("t", ranks.all(), 0, memory, soon(), abort);
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(outcome.message(), HasSubstr("50000 bytes"));
  }
}

TEST(ProcessGroup, ARankThatLeavesIsNamed) {
  Ranks ranks(3);
  ranks.on({0, 1, 2}, [&](int rank) {
    if (rank == 2) return ranks.drop(2);
    AbortSignal abort;
    auto memory = pattern(100'000, rank);
    const Status status = ranks[rank].broadcast("t", ranks.all(), 0, memory, soon(), abort);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_THAT(status.message(), HasSubstr("rank 2"));
  });
}

TEST(ProcessGroup, AStrangerCannotBroadcast) {
  Ranks ranks(1);
  AbortSignal abort;
  auto memory = pattern(8, 0);
  EXPECT_EQ(ranks[0].broadcast("t", {0}, 4, memory, soon(), abort).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt
