// What every backend of spreading promises (spread.h), tried on all of them: each recipient's ring
// gets the bytes of every tensor, whoever owns them, whoever is slow; and when something breaks,
// every lane ends soon, says who is to blame and leaves the memory alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/strings.h"
#include "collective/testing/spread_job.h"

namespace ckpt {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::LaneOutcome;
using testing::make_catalog;
using testing::make_ranks;
using testing::name_in_group;
using testing::PassOptions;
using testing::PassOutcome;
using testing::SpreadBackend;
using testing::SpreadJob;
using testing::TestTensor;
using testing::Topology;

/// A ring of 4 KiB, of which a bucket takes a half at most.
PlanOptions small_ring() {
  PlanOptions options;
  options.ring_bytes = 4096;
  options.bucket_bytes = 2048;
  options.chunk_bytes = 512;
  options.cross_chunk_bytes = 256;
  options.staging_chunks = 3;
  return options;
}

/// Empty ones, odd ones, and one that takes the ring alone.
std::vector<TestTensor> awkward_tensors(int group) {
  std::vector<TestTensor> tensors;
  for (const std::uint64_t bytes : {0, 1, 255, 256, 257, 777, 3001, 0, 1023, 511}) {
    tensors.push_back({name_in_group(group, static_cast<int>(tensors.size())), bytes});
  }
  return tensors;
}

/// Enough buckets to use every place of a small ring several times.
std::vector<TestTensor> even_tensors(int group, int count = 12) {
  std::vector<TestTensor> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({name_in_group(group * 100 + i, 0), static_cast<std::uint64_t>(700 + i)});
  }
  return tensors;
}

Topology job_of(int hosts, int ranks_per_host, const std::vector<std::vector<TestTensor>>& held,
                PlanOptions options = small_ring()) {
  return {make_catalog(held), make_ranks(hosts, ranks_per_host), options,
          concat(hosts, " hosts of ", ranks_per_host, " ranks")};
}

/// Every rank owns tensors of its own.
Topology even_job(int hosts, int ranks_per_host, int tensors = 12) {
  std::vector<std::vector<TestTensor>> held;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
    held.push_back(even_tensors(rank, tensors));
  }
  return job_of(hosts, ranks_per_host, held);
}

class SpreadContract : public ::testing::TestWithParam<SpreadBackend> {
 protected:
  void SetUp() override {
    if (!GetParam().check) return;
    const Status viable = GetParam().check();
    if (!viable.is_ok()) GTEST_SKIP() << viable.to_string();
  }
  void expect_delivered(SpreadJob& job, const PassOptions& options = {}) {
    const PassOutcome outcome = job.run(options);
    ASSERT_TRUE(outcome.cause.is_ok()) << outcome.text();
    EXPECT_EQ(outcome.stray_write, "");
    for (const LaneOutcome& lane : outcome.lanes) {
      if (lane.lane == "chain") {
        EXPECT_EQ(lane.bytes, job.bytes_to_receive(lane.rank)) << "rank " << lane.rank;
      }
    }
  }
  void expect_delivered(Topology topology, const PassOptions& options = {}) {
    SCOPED_TRACE(topology.text);
    SpreadJob job(GetParam(), std::move(topology));
    expect_delivered(job, options);
  }

  /// A rank that takes chunks out of the ring of another host and gives them to a third one.
  static int middle_of_a_chain(const SpreadJob& job) {
    for (const int rank : job.recipients()) {
      for (const IncomingChunk& incoming : job.schedule(rank).receive) {
        if (!incoming.from_pool && incoming.next_stop >= 0) return rank;
      }
    }
    ADD_FAILURE() << "no chain is long enough";
    return 0;
  }
};

/// With the verbs of FakeNetwork.
class SpreadOverDamagedNetwork : public SpreadContract {};

TEST_P(SpreadContract, DeliversTensorsOfAllSizesToAllTopologies) {
  for (const int hosts : {1, 2, 3, 5}) {
    for (const int ranks_per_host : {1, 2, 3}) {
      if (hosts * ranks_per_host > (GetParam().on_fake_network ? 10 : 6)) continue;
      std::vector<std::vector<TestTensor>> held;
      for (int rank = 0; rank < hosts * ranks_per_host; ++rank) {
        held.push_back(awkward_tensors(rank));
      }
      expect_delivered(job_of(hosts, ranks_per_host, held));
    }
  }
}

TEST_P(SpreadContract, DeliversTensorsOfTensOfMebibytes) {
  constexpr std::uint64_t kMiB = 1 << 20;
  PlanOptions options;
  options.ring_bytes = 24 * kMiB;
  options.bucket_bytes = 4 * kMiB;
  options.chunk_bytes = 2 * kMiB;
  options.staging_chunks = 3;
  const std::vector<std::vector<TestTensor>> held = {
      {{name_in_group(0, 0), 23 * kMiB + 1}, {name_in_group(1, 0), 3 * kMiB + 255}},
      {{name_in_group(2, 0), 200 << 10}, {name_in_group(3, 0), 2 * kMiB}},
      {{name_in_group(4, 0), 4 * kMiB}, {name_in_group(5, 0), 1}}};
  // Below and above what a transport asks for at once over TCP. By rendezvous they come in
  // chain/chain_processes_test.cc.
  for (const std::uint64_t chunk : {std::uint64_t{100} << 10, kMiB}) {
    options.cross_chunk_bytes = chunk;
    expect_delivered(job_of(3, 1, held, options));
  }
}

TEST_P(SpreadContract, DeliversFromAnySingleOwner) {
  for (int owner = 0; owner < 6; ++owner) {
    std::vector<std::vector<TestTensor>> held(6);
    held[static_cast<std::size_t>(owner)] = awkward_tensors(0);
    Topology job = job_of(3, 2, held);
    job.text += concat(", owner ", owner);
    expect_delivered(std::move(job));
  }
}

TEST_P(SpreadContract, DeliversWhatEveryRankHolds) {
  const auto tensors = even_tensors(1);
  expect_delivered(job_of(3, 2, {tensors, tensors, tensors, tensors, tensors, tensors}));
}

TEST_P(SpreadContract, DeliversToSubsetsOfRecipients) {
  const std::vector<std::set<int>> subsets = {{0}, {5}, {1, 2}, {0, 1, 4}, {1, 3, 5}, {2, 3, 4, 5}};
  for (const std::set<int>& recipients : subsets) {
    Topology job = even_job(3, 2, 5);
    job.text = "recipients";
    for (int rank = 0; rank < 6; ++rank) {
      const bool chosen = recipients.contains(rank);
      job.ranks[static_cast<std::size_t>(rank)].recipient = chosen;
      if (chosen) job.text += concat(" ", rank);
    }
    expect_delivered(std::move(job));
  }
}

TEST_P(SpreadContract, DeliversThroughTheSmallestRings) {
  PlanOptions serial = small_ring();
  serial.ring_bytes = serial.bucket_bytes = 1024;
  serial.chunk_bytes = serial.cross_chunk_bytes = 256;
  serial.serial = true;
  serial.staging_chunks = 0;
  expect_delivered(job_of(3, 2, {even_tensors(0), even_tensors(1)}, serial));
  PlanOptions halves = serial;
  halves.serial = false;
  halves.ring_bytes = 2048;
  expect_delivered(job_of(3, 2, {even_tensors(0), even_tensors(1)}, halves));
  halves.staging_chunks = 2;
  expect_delivered(job_of(3, 2, {even_tensors(0), even_tensors(1)}, halves));
}

TEST_P(SpreadContract, DeliversWhateverIsDrawn) {
  const std::uint64_t seeds = GetParam().on_fake_network ? 40 : 6;  // UCX connects anew for each
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    Topology job = testing::random_topology(seed);
    job.options.receive_into_rings = job.options.staging_chunks == 0 || seed % 2 == 0;
    PassOptions options;
    options.watch = 1ms;
    options.acknowledges = [seed](int rank, std::uint32_t bucket) {
      const std::uint64_t draw =
          (seed * 31 + static_cast<std::uint64_t>(rank)) * 0x9E3779B97F4A7C15;
      if ((draw >> 60) < 5 && bucket < 20) std::this_thread::sleep_for(300us);
      return true;
    };
    expect_delivered(std::move(job), options);
  }
}

TEST_P(SpreadContract, WaitsForASlowReader) {
  for (const int slow : {0, 3}) {
    SpreadJob job(GetParam(), even_job(3, 2));
    PassOptions options;
    options.acknowledges = [slow](int rank, std::uint32_t) {
      if (rank == slow) std::this_thread::sleep_for(2ms);
      return true;
    };
    expect_delivered(job, options);
  }
}

TEST_P(SpreadOverDamagedNetwork, WaitsForASlowHost) {
  for (const int slow : {2, 4}) {
    SpreadJob job(GetParam(), even_job(3, 2));
    job.network().delay(job.transport(slow), 1ms);
    job.network().delay(job.transport(slow + 1), 3ms);
    expect_delivered(job);
  }
}

TEST_P(SpreadContract, RunsPassesAfterEachOther) {
  SpreadJob job(GetParam(), even_job(3, 2));
  for (int pass = 0; pass < 3; ++pass) expect_delivered(job);
}

TEST_P(SpreadContract, AnAbortEndsEveryLaneAndTheNextPassWorks) {
  SpreadJob job(GetParam(), even_job(3, 2));
  for (const std::uint32_t at : {0u, 1u, 5u}) {
    const Status cause = peer_lost(concat("the worker of rank 3 died in bucket ", at));
    PassOptions options;
    options.watch = 50ms;
    options.acknowledges = [&](int rank, std::uint32_t bucket) {
      if (rank == 3 && bucket == at) job.abort(cause);
      return bucket < at || rank != 3;
    };
    const PassOutcome outcome = job.run(options);
    EXPECT_EQ(outcome.cause.message(), cause.message());
    EXPECT_EQ(outcome.stray_write, "");
    int ended = 0;
    for (const LaneOutcome& lane : outcome.lanes) {
      if (!lane.spreads() || lane.status.is_ok()) continue;
      ++ended;
      EXPECT_EQ(lane.status.code(), cause.code()) << outcome.text();
      EXPECT_THAT(lane.status.message(), HasSubstr(cause.message())) << "rank " << lane.rank;
      EXPECT_LT(lane.ended - outcome.aborted, 1s) << "rank " << lane.rank;
    }
    EXPECT_GT(ended, 0) << "the abort came too late to be seen";
  }
  expect_delivered(job);
}

TEST_P(SpreadContract, NothingIsMovedAfterAnAbort) {
  SpreadJob job(GetParam(), even_job(3, 2));
  PassOptions options;
  options.aborted_before = aborted("called off");
  const PassOutcome outcome = job.run(options);
  EXPECT_EQ(outcome.stray_write, "");
  for (const LaneOutcome& lane : outcome.lanes) {
    EXPECT_EQ(lane.bytes, 0u) << "rank " << lane.rank << " " << lane.lane;
    const bool idle = lane.lane == "chain" && job.schedule(lane.rank).receive.empty();
    if (lane.spreads() && !idle) {
      EXPECT_THAT(lane.status.message(), HasSubstr("called off")) << "rank " << lane.rank;
    }
  }
}

TEST_P(SpreadOverDamagedNetwork, NoReadIsLeftBehindByAnAbort) {
  SpreadJob job(GetParam(), even_job(3, 1));
  for (const int rank : {0, 1, 2}) job.network().delay_stubbornly(job.transport(rank), 30ms);
  PassOptions options;
  options.watch = 60ms;
  options.acknowledges = [&job](int, std::uint32_t) {
    job.abort(aborted("enough"));
    return false;
  };
  const PassOutcome outcome = job.run(options);
  EXPECT_EQ(outcome.cause.message(), "enough") << outcome.text();
  EXPECT_EQ(outcome.stray_write, "");
}

TEST_P(SpreadContract, TheDeadlineNamesTheReaderThatHangs) {
  SpreadJob job(GetParam(), even_job(3, 2));
  PassOptions options;
  options.seconds = 0.3;
  options.tell_everybody = false;
  options.acknowledges = [](int rank, std::uint32_t bucket) { return rank != 3 || bucket < 1; };
  const PassOutcome outcome = job.run(options);
  EXPECT_EQ(outcome.stray_write, "");
  int named = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.status.is_ok()) continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kDeadlineExceeded) << outcome.text();
    EXPECT_THAT(lane.status.message(), HasSubstr("rank "));
    named += lane.status.message().find("rank 3") != std::string::npos;
  }
  EXPECT_GT(named, 0) << outcome.text();
  expect_delivered(job);
}

TEST_P(SpreadContract, TheDeadlineNamesTheOwnerThatHangs) {
  if (GetParam().sharing == RingSharing::kPerHost) {
    GTEST_SKIP() << "nobody spreads what an owner puts into the ring of its host";
  }
  SpreadJob job(GetParam(), even_job(1, 3));
  PassOptions options;
  options.seconds = 0.3;
  options.tell_everybody = false;
  options.fills = [](int rank, std::uint64_t sequence) { return rank != 1 || sequence < 2; };
  const PassOutcome outcome = job.run(options);
  int named = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.status.is_ok()) continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kDeadlineExceeded) << outcome.text();
    named += lane.status.message().find("rank 1") != std::string::npos;
  }
  EXPECT_GT(named, 0) << outcome.text();
}

TEST_P(SpreadContract, ADeadPeerIsNamedAndComesBack) {
  SpreadJob job(GetParam(), even_job(4, 1));
  const int dead = GetParam().spreads_over_hosts ? 2 : middle_of_a_chain(job);
  PassOptions options;
  options.seconds = 0.4;
  options.tell_everybody = false;
  std::atomic<bool> killed{false};
  options.acknowledges = [&](int, std::uint32_t bucket) {
    if (bucket == 1 && !killed.exchange(true)) job.kill(dead);
    return true;
  };
  const PassOutcome outcome = job.run(options);
  EXPECT_EQ(outcome.stray_write, "");
  int named = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.rank == dead || lane.status.is_ok()) continue;
    EXPECT_THAT(lane.status.code(), AnyOf(StatusCode::kPeerLost, StatusCode::kDeadlineExceeded))
        << outcome.text();
    EXPECT_THAT(lane.status.message(), HasSubstr("rank ")) << outcome.text();
    named += lane.status.message().find(concat("rank ", dead)) != std::string::npos;
  }
  EXPECT_GT(named, 0) << outcome.text();
  job.restart(dead);
  expect_delivered(job);
}

TEST_P(SpreadOverDamagedNetwork, ACorruptedChunkIsFound) {
  SpreadJob job(GetParam(), even_job(3, 2));
  for (const int owner : {0, 3}) {
    job.network().corrupt_next_read(job.transport(owner));
    const PassOutcome outcome = job.run();
    EXPECT_EQ(outcome.cause.code(), StatusCode::kDataLoss) << outcome.text();
    EXPECT_THAT(outcome.cause.message(), HasSubstr("of tensor model.layers.0"));
    EXPECT_EQ(outcome.stray_write, "");
  }
  expect_delivered(job);
}

TEST_P(SpreadOverDamagedNetwork, ALostSignalIsMadeUpForByTheNext) {
  PlanOptions roomy = small_ring();
  roomy.ring_bytes = 64 << 10;
  roomy.staging_chunks = 40;
  SpreadJob job(GetParam(), job_of(3, 1, {even_tensors(0), even_tensors(1)}, roomy));
  for (const int rank : job.recipients()) job.network().drop_signals(job.transport(rank), 2);
  expect_delivered(job);
}

TEST_P(SpreadOverDamagedNetwork, TheDeadlineNamesWhoseSignalsAreMissing) {
  SpreadJob job(GetParam(), even_job(4, 1));
  const int deaf = middle_of_a_chain(job);
  job.network().drop_signals(job.transport(deaf), 1 << 20);
  PassOptions options;
  options.seconds = 0.3;
  options.tell_everybody = false;
  const PassOutcome outcome = job.run(options);
  ASSERT_FALSE(outcome.cause.is_ok());
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.status.is_ok()) continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kDeadlineExceeded) << outcome.text();
    EXPECT_THAT(lane.status.message(), HasSubstr("rank ")) << outcome.text();
  }
  job.network().drop_signals(job.transport(deaf), 0);
  expect_delivered(job);
}

TEST_P(SpreadOverDamagedNetwork, AStoppedOwnerHoldsUpThePassUntilItGoesOn) {
  SpreadJob job(GetParam(), even_job(3, 2));
  job.network().stop(job.transport(2));
  PassOptions options;
  options.seconds = 0.3;
  options.tell_everybody = false;
  const PassOutcome outcome = job.run(options);
  int named = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.status.is_ok()) continue;
    EXPECT_EQ(lane.status.code(), StatusCode::kDeadlineExceeded) << outcome.text();
    named += lane.status.message().find("rank 2") != std::string::npos;
  }
  EXPECT_GT(named, 0) << outcome.text();
  job.network().resume(job.transport(2));
  expect_delivered(job);
}

std::vector<SpreadBackend> backends_on_fake_network() {
  std::vector<SpreadBackend> backends = testing::spread_backends();
  std::erase_if(backends, [](const SpreadBackend& backend) { return !backend.on_fake_network; });
  return backends;
}

std::string name_of(const ::testing::TestParamInfo<SpreadBackend>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Backends, SpreadContract, ::testing::ValuesIn(testing::spread_backends()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Backends, SpreadOverDamagedNetwork,
                         ::testing::ValuesIn(backends_on_fake_network()), name_of);

}  // namespace
}  // namespace ckpt
