// Spreading between ranks of one host that are processes: through shared memory, by CUDA IPC (on
// one GPU, and on one each), and by NCCL. What every backend promises when ranks are killed and
// stopped for real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "base/strings.h"
#include "collective/testing/spread_processes.h"

namespace ckpt {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::ProcessFault;
using testing::SpreadBackend;
using testing::SpreadProcesses;
using testing::TestTensor;
using testing::Topology;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr int kRanks = 2;
constexpr int kVictim = 1;
/// Of a pass that nothing disturbs; not a wait.
constexpr double kPatience = 60;
/// Of one that a fault holds up.
constexpr double kFaultSeconds = 4;

/// Each rank has tensors of its own, through a ring that is used several times.
Topology job_of(std::uint64_t tensor_bytes, int staging_chunks) {
  std::vector<std::vector<TestTensor>> held(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < 6; ++i) {
      held[static_cast<std::size_t>(rank)].push_back(
          {testing::name_in_group(rank * 100 + i, 0),
           tensor_bytes + 1000 * static_cast<std::uint64_t>(i) + 13});
    }
  }
  PlanOptions options;
  options.ring_bytes = 4 * kMiB;
  options.bucket_bytes = 2 * kMiB;
  options.chunk_bytes = kMiB / 2;
  options.cross_chunk_bytes = kMiB / 2;
  options.staging_chunks = staging_chunks;
  options.sharing = RingSharing::kPerRank;
  return {make_catalog(held), testing::make_ranks(1, kRanks), options, "two ranks"};
}

/// Asked in a process of its own: one that has asked CUDA cannot be forked any more.
std::string why_not(const SpreadBackend& backend) {
  if (!backend.check) return "";
  int answer[2];
  if (::pipe(answer) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const Status viable = backend.check();
    const std::string text = viable.is_ok() ? "" : viable.to_string();
    ::_exit(::write(answer[1], text.data(), text.size()) < 0);
  }
  ::close(answer[1]);
  std::string text;
  char piece[512];
  for (ssize_t n = 0; (n = ::read(answer[0], piece, sizeof(piece))) > 0;)
    text.append(piece, static_cast<std::size_t>(n));
  ::close(answer[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

class SpreadBetweenProcesses : public ::testing::TestWithParam<SpreadBackend> {
 protected:
  void SetUp() override {
    const std::string reason = why_not(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  void start(Topology job) { processes_.emplace(GetParam(), std::move(job)); }
  void expect_delivered() {
    for (const auto& [rank, outcome] : processes_->run(kPatience)) {
      EXPECT_TRUE(outcome.ok) << "rank " << rank << " " << outcome.text;
      EXPECT_FALSE(outcome.stray_write) << "rank " << rank << " " << outcome.text;
    }
  }
  /// The others wait for the victim until the deadline: in a job, the hub tells them at once.
  void expect_named(int signal) {
    for (const auto& [rank, outcome] : processes_->run(kFaultSeconds, {kVictim, signal})) {
      EXPECT_FALSE(outcome.stray_write) << "rank " << rank << " " << outcome.text;
      if (rank == kVictim) continue;
      EXPECT_FALSE(outcome.ok) << "rank " << rank;
      for (const Status& status : outcome.failures) {
        EXPECT_THAT(status.code(), AnyOf(StatusCode::kPeerLost, StatusCode::kDeadlineExceeded,
                                         StatusCode::kPeerError))
            << outcome.text;
      }
      if (GetParam().make_key) continue;  // of a group call nobody can say who has not come
      EXPECT_THAT(outcome.text, HasSubstr(concat("rank ", kVictim)));
    }
  }

  std::optional<SpreadProcesses> processes_;
};
INSTANTIATE_TEST_SUITE_P(, SpreadBetweenProcesses, ::testing::ValuesIn(testing::process_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(SpreadBetweenProcesses, DeliverPassAfterPass) {
  start(job_of(kMiB, 3));
  for (int pass = 0; pass < 3; ++pass) expect_delivered();
}

TEST_P(SpreadBetweenProcesses, DeliverSmallTensorsAndLargeOnes) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, 3 * kMiB}) {
    start(job_of(bytes, 3));
    expect_delivered();
  }
}

TEST_P(SpreadBetweenProcesses, DeliverWithoutStaging) {
  if (GetParam().make_key) GTEST_SKIP() << "a group call sends out of staging";
  start(job_of(kMiB, 0));
  for (int pass = 0; pass < 2; ++pass) expect_delivered();
}

TEST_P(SpreadBetweenProcesses, AKilledRankEndsThePassAndANewOneTakesItsPlace) {
  start(job_of(kMiB, 3));
  expect_delivered();
  expect_named(SIGKILL);
  processes_->restart(kVictim);
  expect_delivered();
}

TEST_P(SpreadBetweenProcesses, AnAbortIsHeardAndTheNextPassWorks) {
  start(job_of(kMiB, 3));
  for (const auto& [rank, outcome] : processes_->run(kPatience, {.aborts = true})) {
    EXPECT_FALSE(outcome.ok) << "rank " << rank;
    EXPECT_FALSE(outcome.stray_write) << "rank " << rank << " " << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr("called off")) << "rank " << rank;
    EXPECT_LT(outcome.seconds_to_end, 1) << "rank " << rank << " " << outcome.text;
  }
  expect_delivered();
}

TEST_P(SpreadBetweenProcesses, AStoppedRankEndsThePassAndTakesPartInTheNext) {
  if (!GetParam().in_host_memory) {
    GTEST_SKIP() << "here a GPU's memory is freed under a rank that is stopped; a parameter server "
                    "keeps it (tests/closing_test.cc)";
  }
  start(job_of(kMiB, 3));
  expect_delivered();
  expect_named(SIGSTOP);
  expect_delivered();
}

}  // namespace
}  // namespace ckpt
