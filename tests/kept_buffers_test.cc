// Buffers that stay between updates (keep_buffers): the second update allocates nothing, and none
// of it outlives its use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "base/strings.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::IsEmpty;

void keep(ParameterServerOptions& options) { options.keep_buffers = true; }

std::uint64_t allocated(const Job& job) {
  std::uint64_t bytes = 0;
  for (const UpdateReport& report : job.reports) bytes += report.allocated_bytes;
  return bytes;
}

/// With one ring for a host, with a ring for every rank, and with two hosts of those.
struct Way {
  const char* name;
  const char* collective;
  std::vector<std::string> hosts;
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
};

class KeptBuffersTest : public ::testing::TestWithParam<Way> {
 protected:
  static JobOptions job_options() {
    return {.ranks = kRanks,
            .host_ids = GetParam().hosts,
            .collective = GetParam().collective,
            .adjust = keep};
  }
  static constexpr int kRanks = 3;

  void expect_update(const std::string& name, const Checkpoint& checkpoint,
                     const UpdateOptions& options = {}) {
    std::vector<TestEngine> engines;
    engines.emplace_back(options.recipients.empty() ? kRanks
                                                    : static_cast<int>(options.recipients.size()));
    for (const Status& status : job_.update(name, job_.call(engines), options)) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    for (const TestLoader& loader : engines[0].loaders) {
      EXPECT_EQ(loader.difference(checkpoint), "");
    }
  }
  void unregister(const std::string& name) {
    for (const Status& status : job_.run(
             [&](int, ParameterServer& server) { return server.unregister_checkpoint(name); })) {
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    }
  }
  /// Staging goes when all ranks have closed it, which the last one says after it was asked.
  void expect_nothing_left() {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!job_.shared_objects().empty() && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_THAT(job_.shared_objects(), IsEmpty());
  }

  const Checkpoint checkpoint_ = small_model(6, 211);
  Job job_{job_options()};
};
INSTANTIATE_TEST_SUITE_P(, KeptBuffersTest,
                         ::testing::Values(Way{"OneRing", "auto", {}}, Way{"Rings", "peer", {}},
                                           Way{"Hosts", "peer", {"a", "a", "b"}}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(KeptBuffersTest, TheSecondUpdateAllocatesNothing) {
  ASSERT_TRUE(job_.load("c", checkpoint_).is_ok());
  expect_update("c", checkpoint_);
  EXPECT_GT(allocated(job_), 0u);
  const auto kept = job_.shared_objects();
  EXPECT_FALSE(kept.empty());
  expect_update("c", checkpoint_);
  EXPECT_EQ(allocated(job_), 0u);
  for (const UpdateReport& report : job_.reports) {
    EXPECT_EQ(report.kept_bytes, report.ring_bytes + report.staging_bytes);
  }
  EXPECT_EQ(job_.shared_objects(), kept) << "the same rings and staging";
  unregister("c");
  expect_nothing_left();
}

TEST_P(KeptBuffersTest, StayWhileACheckpointReplacesTheOneBefore) {
  ASSERT_TRUE(job_.load("step-1", checkpoint_).is_ok());
  expect_update("step-1", checkpoint_);
  const Checkpoint next = small_model(6, 223);
  ASSERT_TRUE(job_.load("step-2", next).is_ok());
  expect_update("step-2", next);
  EXPECT_EQ(allocated(job_), 0u);
  unregister("step-1");
  expect_update("step-2", next);
  EXPECT_EQ(allocated(job_), 0u);
  unregister("step-2");
  expect_nothing_left();
}

TEST_P(KeptBuffersTest, ALargerRingIsMadeAnewAndServesSmallerOnesToo) {
  ASSERT_TRUE(job_.load("small", checkpoint_).is_ok());
  expect_update("small", checkpoint_);
  Checkpoint large = checkpoint_;
  large["model.layers.1.huge"] = random_tensor("model.layers.1.huge", (13 << 20) + 1, 9);
  ASSERT_TRUE(job_.load("large", large).is_ok());
  expect_update("large", large);
  EXPECT_GE(allocated(job_), (13u << 20) + 1);
  EXPECT_THAT(job_.shared_objects().size(), ::testing::Le(3u * kRanks))
      << "the small ring has gone";
  ASSERT_TRUE(job_.load("small again", checkpoint_).is_ok());
  expect_update("small again", checkpoint_);
  EXPECT_GE(job_.reports[0].ring_bytes, (13u << 20) + 1);
  unregister("small again");
  expect_nothing_left();
}

TEST_P(KeptBuffersTest, GoWithAnUpdateThatIsGivenUp) {
  ASSERT_TRUE(job_.load("c", checkpoint_).is_ok());
  expect_update("c", checkpoint_);
  for (const Status& status : job_.run([&](int, ParameterServer& server) -> Status {
         CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare("c", {}));
         server.abort(std::move(prepared), aborted("training went wrong"));
         return Status();
       })) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  expect_nothing_left();
  expect_update("c", checkpoint_);
  EXPECT_GT(allocated(job_), 0u);
  expect_update("c", checkpoint_);
  EXPECT_EQ(allocated(job_), 0u);
}

TEST_P(KeptBuffersTest, GoWithAnUpdateThatFails) {
  ASSERT_TRUE(job_.load("c", checkpoint_).is_ok());
  expect_update("c", checkpoint_);
  for (const Status& status :
       job_.update("c", [](const std::vector<WorkerAddress>&, EngineCallContext&) -> Status {
         return peer_error("the engine says 404");
       })) {
    EXPECT_FALSE(status.is_ok());
  }
  expect_nothing_left();
  expect_update("c", checkpoint_);
}

TEST_P(KeptBuffersTest, AreNotForOtherRecipients) {
  ASSERT_TRUE(job_.load("c", checkpoint_).is_ok());
  expect_update("c", checkpoint_);
  const auto kept = job_.shared_objects();
  UpdateOptions options;
  options.recipients = {1, 2};
  expect_update("c", checkpoint_, options);
  EXPECT_EQ(job_.reports[1].kept_bytes, 0u);
  EXPECT_EQ(job_.shared_objects(), kept);
  expect_update("c", checkpoint_);
  EXPECT_EQ(allocated(job_), 0u);
}

TEST_P(KeptBuffersTest, ARankThatHasDroppedItsOwnMakesAllBeginAnew) {
  ASSERT_TRUE(job_.load("c", checkpoint_).is_ok());
  expect_update("c", checkpoint_);
  // The others still have the set, with what they had opened of rank 1.
  EXPECT_TRUE(job_.server(1).unregister_checkpoint("c").is_ok());
  ASSERT_TRUE(job_.load("next", checkpoint_).is_ok());
  expect_update("next", checkpoint_);
  EXPECT_GT(allocated(job_), 0u);
  expect_update("next", checkpoint_);
  EXPECT_EQ(allocated(job_), 0u);
}

TEST(KeptBuffersOfSome, NobodyKeepsWhatOneRankWillNot) {
  const Checkpoint checkpoint = small_model(3, 227);
  Job job({.ranks = 2, .collective = "peer", .adjust = [](ParameterServerOptions& options) {
             options.keep_buffers = options.rank == 0;
           }});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  for (int round = 0; round < 2; ++round) {
    std::vector<TestEngine> engines;
    engines.emplace_back(2);
    for (const Status& status : job.update("c", job.call(engines))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    EXPECT_THAT(job.shared_objects(), IsEmpty());
  }
}

TEST(KeptBuffersAtTheEnd, GoWithTheirServers) {
  std::vector<std::string> kept;
  {
    const Checkpoint checkpoint = small_model(3, 229);
    Job job({.ranks = 2, .collective = "peer", .adjust = keep});
    ASSERT_TRUE(job.load("c", checkpoint).is_ok());
    std::vector<TestEngine> engines;
    engines.emplace_back(2);
    for (const Status& status : job.update("c", job.call(engines))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    kept = job.shared_objects();
    EXPECT_FALSE(kept.empty());
  }
  for (const std::string& name : kept) {
    EXPECT_FALSE(std::filesystem::exists(concat("/dev/shm/", name))) << name;
  }
}

}  // namespace
}  // namespace ckpt::testing
