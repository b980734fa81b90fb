// Group calls over several hosts: none goes out before all of it is filled and every ring has room,
// wherever the rank is that is late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/strings.h"
#include "collective/nccl/nccl_rounds.h"
#include "collective/testing/fake_nccl.h"
#include "collective/testing/spread_job.h"

namespace ckpt {
namespace {

using namespace std::chrono_literals;
using testing::FakeNccl;
using ::testing::HasSubstr;
using testing::LaneOutcome;
using testing::name_in_group;
using testing::PassOptions;
using testing::PassOutcome;
using testing::SpreadJob;
using testing::Topology;

constexpr int kRanks = 4;
/// Of a wait that nothing disturbs; no test comes near it.
constexpr auto kPatience = 60s;

/// Two hosts of two ranks, each with tensors of its own, through rings that are used many times.
Topology two_hosts() {
  std::vector<std::vector<testing::TestTensor>> held(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 12; ++i) {
      held[static_cast<std::size_t>(rank)].push_back(
          {name_in_group(rank * 100 + i, 0), static_cast<std::uint64_t>(700 + i)});
    }
  }
  PlanOptions options;
  options.ring_bytes = 4096;
  options.bucket_bytes = 2048;
  options.chunk_bytes = 512;
  options.cross_chunk_bytes = 256;
  options.staging_chunks = 3;
  return {testing::make_catalog(held), testing::make_ranks(2, kRanks / 2), options, "two hosts"};
}

/// Sees every group call when it is made, and what had been filled and loaded at most by then.
class NcclHostsTest : public ::testing::Test {
 protected:
  NcclHostsTest() {
    FakeNccl::watch_groups([this](int rank, std::size_t group) { saw_group(rank, group); });
    options_.acknowledges = [this](int rank, std::uint32_t bucket) {
      loaded_[static_cast<std::size_t>(rank)] = bucket + 1;
      return true;
    };
    options_.fills = [this](int rank, std::uint64_t sequence) {
      filled_[static_cast<std::size_t>(rank)] = sequence + 1;
      return true;
    };
  }
  ~NcclHostsTest() override { FakeNccl::watch_groups({}); }

  void expect_delivered() {
    for (auto* numbers : {&loaded_, &filled_, &issued_}) {
      for (auto& number : *numbers) number = 0;
    }
    const PassOutcome outcome = job_.run(options_);
    EXPECT_TRUE(outcome.cause.is_ok()) << outcome.text();
    EXPECT_EQ(outcome.stray_write, "");
    for (const auto& issued : issued_) EXPECT_EQ(issued, rounds_.size());
    EXPECT_EQ(too_early_, "");
  }

  /// Returns when every rank has made `groups` calls; then lets those that should not do so have
  /// the time to make another.
  void wait_for_groups(std::size_t groups) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(lock, kPatience, [&] {
      return std::ranges::all_of(issued_, [&](const auto& issued) { return issued >= groups; });
    });
    lock.unlock();
    std::this_thread::sleep_for(50ms);
    EXPECT_TRUE(came) << "calls that need nobody who is late were not made";
    for (const auto& issued : issued_) EXPECT_EQ(issued, groups);
  }

  /// The first round that needs what the workers do with `bucket`.
  std::size_t first_round_behind(std::int32_t bucket) const {
    return first_round([&](const Pull& pull) {
      return job_.plan().buckets[pull.chunk.bucket].reuse_after >= bucket;
    });
  }
  std::size_t round_of(int rank, std::uint64_t sequence) const {
    return first_round(
        [&](const Pull& pull) { return pull.rank == rank && pull.sequence == sequence; });
  }

  SpreadJob job_{testing::spread_backend("nccl_fake_over_hosts"), two_hosts()};
  const std::vector<NcclRound> rounds_ = nccl_rounds(job_.plan(), job_.schedule(0));
  PassOptions options_;
  std::array<std::atomic<std::uint64_t>, kRanks> loaded_{}, filled_{}, issued_{};

 private:
  template <typename Wanted>
  std::size_t first_round(Wanted wanted) const {
    for (std::size_t round = 0; round < rounds_.size(); ++round) {
      for (const std::uint32_t index : rounds_[round]) {
        if (wanted(job_.schedule(0).pull[index])) return round;
      }
    }
    ADD_FAILURE() << "no round is like that";
    return 0;
  }

  void saw_group(int rank, std::size_t group) {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t index : rounds_[group]) {
      const Pull& pull = job_.schedule(0).pull[index];
      if (filled_[static_cast<std::size_t>(pull.rank)] <= pull.sequence) {
        too_early_ += concat("rank ", rank, " made call ", group, " before chunk ", pull.sequence,
                             " of rank ", pull.rank, "\n");
      }
      const std::int32_t before = job_.plan().buckets[pull.chunk.bucket].reuse_after;
      for (int other = 0; before >= 0 && other < kRanks; ++other) {
        if (loaded_[static_cast<std::size_t>(other)] > static_cast<std::uint64_t>(before)) continue;
        too_early_ += concat("rank ", rank, " made call ", group, " before the worker of rank ",
                             other, " had loaded bucket ", before, "\n");
      }
    }
    issued_[static_cast<std::size_t>(rank)] = group + 1;
    changed_.notify_all();
  }

  std::mutex mutex_;  // guards too_early_, and the waits for issued_
  std::condition_variable changed_;
  std::string too_early_;
};

TEST_F(NcclHostsTest, EveryRankMakesEveryCall) {
  ASSERT_GT(rounds_.size(), 10u);
  for (int pass = 0; pass < 3; ++pass) expect_delivered();
  EXPECT_EQ(FakeNccl::mistakes(), 0);
}

TEST_F(NcclHostsTest, NoCallGoesOutBeforeASlowWorkerHasMadeRoom) {
  for (const int slow : {0, 3}) {
    for (const std::int32_t late : {0, 2}) {
      SCOPED_TRACE(concat("the worker of rank ", slow, " is late with bucket ", late));
      options_.acknowledges = [&](int rank, std::uint32_t bucket) {
        if (rank == slow && static_cast<std::int32_t>(bucket) == late)
          wait_for_groups(first_round_behind(late));
        loaded_[static_cast<std::size_t>(rank)] = bucket + 1;
        return true;
      };
      expect_delivered();
    }
  }
}

TEST_F(NcclHostsTest, NoCallGoesOutBeforeASlowOwnerHasFilled) {
  for (const int slow : {1, 2}) {
    for (const std::uint64_t late : {0, 4}) {
      SCOPED_TRACE(concat("rank ", slow, " is late with chunk ", late));
      options_.fills = [&](int rank, std::uint64_t sequence) {
        if (rank == slow && sequence == late) wait_for_groups(round_of(slow, late));
        filled_[static_cast<std::size_t>(rank)] = sequence + 1;
        return true;
      };
      expect_delivered();
    }
  }
}

TEST_F(NcclHostsTest, SignalsThatAreLateHoldItUpUntilTheyCome) {
  options_.acknowledges = [&](int rank, std::uint32_t bucket) {
    if (rank == 0 && bucket == 1) {
      job_.network().stop(job_.transport(2));
      job_.network().stop(job_.transport(0));
      std::this_thread::sleep_for(100ms);
      job_.network().resume(job_.transport(0));
      job_.network().resume(job_.transport(2));
    }
    loaded_[static_cast<std::size_t>(rank)] = bucket + 1;
    return true;
  };
  expect_delivered();
}

TEST_F(NcclHostsTest, WhereSignalsAreLostTheDeadlineNamesTheRankThatIsWaitedFor) {
  // The ranks of the first host hear nothing of the second, which hears them.
  for (const int deaf : {0, 1}) job_.network().drop_signals(job_.transport(deaf), 1 << 20);
  options_.seconds = 0.3;
  options_.tell_everybody = false;
  const PassOutcome outcome = job_.run(options_);
  EXPECT_EQ(outcome.cause.code(), StatusCode::kDeadlineExceeded) << outcome.text();
  int named = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    if (lane.lane != "nccl" || lane.rank > 1) continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kDeadlineExceeded) << outcome.text();
    for (const char* unheard : {"staging of rank 2", "staging of rank 3"})
      named += lane.status.message().find(unheard) != std::string::npos;
  }
  EXPECT_GT(named, 0) << outcome.text();
  for (const std::size_t deaf : {0u, 1u}) EXPECT_EQ(issued_[deaf], 0u) << "would have spun";
  for (const int deaf : {0, 1}) job_.network().drop_signals(job_.transport(deaf), 0);
  options_.seconds = 60;
  options_.tell_everybody = true;
  expect_delivered();
}

TEST_F(NcclHostsTest, AKilledRankOfAnotherHostEndsThePassAndComesBack) {
  options_.acknowledges = [&](int rank, std::uint32_t bucket) {
    if (rank == 3 && bucket == 2) {
      job_.kill(3);
      job_.abort(peer_lost("rank 3 has gone"));  // as the hub tells everybody
      return false;
    }
    return true;
  };
  options_.fills = nullptr;
  FakeNccl::watch_groups({});
  const PassOutcome outcome = job_.run(options_);
  EXPECT_THAT(outcome.cause.message(), HasSubstr("rank 3")) << outcome.text();
  EXPECT_EQ(outcome.stray_write, "");
  for (const LaneOutcome& lane : outcome.lanes) {
    if (lane.lane != "nccl") continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kPeerLost) << outcome.text();
    EXPECT_LT(lane.ended - outcome.aborted, 1s) << "rank " << lane.rank;
  }
  job_.restart(3);
  options_.acknowledges = nullptr;
  EXPECT_TRUE(job_.run(options_).cause.is_ok());
}

}  // namespace
}  // namespace ckpt
