// The chain over UCX between processes: every byte arrives, in pieces that come unannounced, as
// over TCP, and in pieces by rendezvous, as by RDMA; a rank that is killed or stopped in the middle
// of a pass is named by the others, and nothing is written into their memory afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "base/strings.h"
#include "collective/testing/must.h"
#include "collective/testing/spread_processes.h"
#include "transport/read_plan.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::SpreadBackend;
using testing::SpreadProcesses;
using testing::TestTensor;
using testing::Topology;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr int kHosts = 4;
/// Of a pass that nothing disturbs; not a wait.
constexpr double kPatience = 60;
/// Of one that a fault holds up: enough for sanitizers on a busy machine to come to the fault.
constexpr double kFaultSeconds = 8;

SpreadBackend over_ucx(bool by_rendezvous) {
  SpreadBackend backend = testing::spread_backend("chain_ucx");
  if (by_rendezvous) {
    backend.make_transport = [](testing::FakeNetwork&, int rank) -> std::shared_ptr<Transport> {
      UcxOptions options;
      options.label = concat("rank ", rank);
      options.read_grain = kReadGrain;
      return testing::must(make_ucx_transport(options));
    };
  }
  return backend;
}

/// Four hosts of one rank, each with tensors of a MiB and more, through rings of four.
Topology job_of(std::uint64_t chunk_bytes) {
  std::vector<std::vector<TestTensor>> held(kHosts);
  for (int rank = 0; rank < kHosts; ++rank) {
    for (int i = 0; i < 5; ++i) {
      held[static_cast<std::size_t>(rank)].push_back(
          {testing::name_in_group(rank * 100 + i, 0),
           kMiB + 1000 * static_cast<std::uint64_t>(i) + 13});
    }
  }
  PlanOptions options;
  options.ring_bytes = 4 * kMiB;
  options.bucket_bytes = 2 * kMiB;
  options.chunk_bytes = kMiB;
  options.cross_chunk_bytes = chunk_bytes;
  options.staging_chunks = 3;
  options.sharing = RingSharing::kPerHost;
  return {make_catalog(held), testing::make_ranks(kHosts, 1), options,
          concat("chunks of ", chunk_bytes)};
}

/// A rank that takes chunks out of the ring of another host and gives them to a third one.
int middle_of_a_chain(const Topology& job) {
  const Plan plan = job.plan().value();
  for (int rank = 0; rank < kHosts; ++rank) {
    for (const IncomingChunk& incoming : make_schedule(plan, job.ranks, rank).receive) {
      if (!incoming.from_pool && incoming.next_stop >= 0) return rank;
    }
  }
  ADD_FAILURE() << "no chain is long enough";
  return 0;
}

struct Way {
  std::uint64_t chunk_bytes;
  /// Of what is larger than kEagerBytes; else it comes in more pieces.
  bool by_rendezvous;

  friend void PrintTo(const Way& way, std::ostream* out) {
    *out << way.chunk_bytes << (way.by_rendezvous ? "_by_rendezvous" : "");
  }
};

class ChainProcesses : public ::testing::TestWithParam<Way> {
 protected:
  void expect_delivered() {
    for (const auto& [rank, outcome] : processes_.run(kPatience)) {
      EXPECT_TRUE(outcome.ok) << "rank " << rank << " " << outcome.text;
      EXPECT_FALSE(outcome.stray_write) << "rank " << rank << " " << outcome.text;
    }
  }
  /// Of the victim of `signal`, Who reads it when a killed one ends sees
  /// its connection end, who waits for its signals has the deadline: in a job, the hub tells them
  /// all.
  void expect_named(int signal) {
    int named = 0;
    for (const auto& [rank, outcome] : processes_.run(kFaultSeconds, {victim_, signal})) {
      EXPECT_FALSE(outcome.stray_write) << "rank " << rank << " " << outcome.text;
      if (rank == victim_) continue;
      EXPECT_FALSE(outcome.ok) << "rank " << rank;
      for (const Status& status : outcome.failures) {
        EXPECT_THAT(status.code(), AnyOf(StatusCode::kPeerLost, StatusCode::kDeadlineExceeded))
            << outcome.text;
        EXPECT_THAT(status.message(), HasSubstr("rank ")) << outcome.text;
        named += status.message().find(concat("rank ", victim_)) != std::string::npos;
      }
    }
    EXPECT_GT(named, 0);
  }

  const Topology job_ = job_of(GetParam().chunk_bytes);
  const int victim_ = middle_of_a_chain(job_);
  SpreadProcesses processes_{over_ucx(GetParam().by_rendezvous), job_};
};
INSTANTIATE_TEST_SUITE_P(, ChainProcesses,
                         ::testing::Values(Way{100 << 10, false}, Way{512 << 10, false},
                                           Way{512 << 10, true}),
                         ::testing::PrintToStringParamName());

TEST_P(ChainProcesses, DeliverPassAfterPass) {
  for (int pass = 0; pass < 3; ++pass) expect_delivered();
}

TEST_P(ChainProcesses, AKilledRankIsNamedAndANewOneTakesItsPlace) {
  expect_delivered();
  expect_named(SIGKILL);
  processes_.restart(victim_);
  expect_delivered();
}

TEST_P(ChainProcesses, AStoppedRankIsNamedAndWritesNothingWhenItGoesOn) {
  expect_delivered();
  expect_named(SIGSTOP);
  expect_delivered();
}

}  // namespace
}  // namespace ckpt
