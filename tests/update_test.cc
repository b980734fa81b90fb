// The main job: a checkpoint that is spread over ranks goes into the memory of running engines,
// whole, or not at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"
#include "device/device.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

std::vector<TestEngine> make_engines(int instances, int workers) {
  std::vector<TestEngine> engines;
  for (int i = 0; i < instances; ++i) engines.emplace_back(workers);
  return engines;
}

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.is_ok()) << status.to_string();
}

void expect_whole(const std::vector<TestEngine>& engines, const Checkpoint& checkpoint) {
  for (const TestEngine& engine : engines) {
    for (const TestLoader& loader : engine.loaders) EXPECT_EQ(loader.difference(checkpoint), "");
  }
}

class UpdateOverCollective : public ::testing::TestWithParam<Rings> {
 protected:
  static JobOptions job_of(int ranks) {
    return {.ranks = ranks, .collective = GetParam().collective, .sizes = GetParam().sizes};
  }
  /// Of a small model of six layers and more.
  static void expect_ring_used_again(const Job& job) {
    if (!GetParam().small()) return;
    for (const UpdateReport& report : job.reports) EXPECT_GT(report.buckets, 10u);
  }
};
INSTANTIATE_TEST_SUITE_P(, UpdateOverCollective,
                         ::testing::Values(Rings{"OneRing", "auto", kLargeRing},
                                           Rings{"OneSmallRing", "auto", kSmallRing},
                                           Rings{"SmallOwnRings", "peer", kSmallRing}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(UpdateOverCollective, FourRanksUpdateTwoInstancesOfTwoWorkers) {
  const Checkpoint checkpoint = small_model(6, 1);
  JobOptions options = job_of(4);
  options.instance_size = 2;
  Job job(options);
  ASSERT_TRUE(job.load("step-1", checkpoint).is_ok());
  auto engines = make_engines(2, 2);
  expect_ok(job.update("step-1", job.call(engines)));
  expect_whole(engines, checkpoint);
  std::uint64_t filled = 0;
  for (const UpdateReport& report : job.reports) {
    EXPECT_EQ(report.loaded_tensors, checkpoint.size());
    EXPECT_EQ(report.verified_tensors, checkpoint.size());
    EXPECT_EQ(report.total_bytes, report.loaded_bytes);
    EXPECT_EQ(report.passes, 1);
    EXPECT_EQ(report.wire, "native");
    EXPECT_EQ(report.received_bytes, 0u) << "the ranks of one host share their ring";
    filled += report.filled_bytes;
  }
  EXPECT_GE(filled, job.reports[0].total_bytes);
  expect_ring_used_again(job);
  EXPECT_EQ(engines[1].loaders[1].finished, 1);
}

TEST_P(UpdateOverCollective, NewWeightsReplaceTheOldOnesInPlace) {
  Job job(job_of(2));
  auto engines = make_engines(1, 2);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const Checkpoint checkpoint = small_model(2, step);
    const std::string name = concat("step-", step);
    ASSERT_TRUE(job.load(name, checkpoint).is_ok());
    expect_ok(job.update(name, job.call(engines)));
    expect_whole(engines, checkpoint);
    expect_ok(
        job.run([&](int, ParameterServer& server) { return server.unregister_checkpoint(name); }));
  }
}

TEST_P(UpdateOverCollective, OneRankAlone) {
  const Checkpoint checkpoint = small_model(3, 5);
  Job job(job_of(1));
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 1);
  expect_ok(job.update("c", job.call(engines)));
  expect_whole(engines, checkpoint);
}

TEST_P(UpdateOverCollective, ATensorLargerThanTheBucketTakesTheRingAlone) {
  Checkpoint checkpoint = small_model(2, 3);
  checkpoint["model.layers.1.huge"] = random_tensor("model.layers.1.huge", (13 << 20) + 1, 9);
  Job job(job_of(3));
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 3);
  expect_ok(job.update("c", job.call(engines)));
  expect_whole(engines, checkpoint);
  EXPECT_GE(job.reports[0].ring_bytes, (13u << 20) + 1);
}

TEST_P(UpdateOverCollective, SeveralHostsPassTheBytesOn) {
  const Checkpoint checkpoint = small_model(8, 11);
  JobOptions options = job_of(6);
  options.instance_size = 2;
  options.host_ids = {"a", "a", "b", "b", "c", "c"};
  Job job(options);
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(3, 2);
  for (int round = 0; round < 2; ++round) {
    expect_ok(job.update("c", job.call(engines)));
    expect_whole(engines, checkpoint);
    expect_ring_used_again(job);
  }
  std::uint64_t received = 0;
  for (const UpdateReport& report : job.reports) received += report.received_bytes;
  // Every byte enters each of the two other hosts once.
  EXPECT_GE(received, 2 * job.reports[0].total_bytes);
}

TEST(Update, LittleMemoryForManyChunksStillServesEveryRank) {
  const Checkpoint checkpoint = small_model(8, 43);
  Job job({.ranks = 3, .collective = "peer", .sizes = kSmallRing});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 3);
  for (int round = 0; round < 3; ++round) {
    expect_ok(job.update("c", job.call(engines)));
    expect_whole(engines, checkpoint);
  }
  EXPECT_GT(job.reports[0].buckets, 10u);
  EXPECT_GT(job.reports[0].staging_bytes, 0u);
}

TEST(Update, LittleMemoryMeansASmallerRingThenOneBucketAtATimeThenAnError) {
  // The largest tensor has 125 KiB, staging would have 1 MiB. What others take of the host's memory
  // meanwhile may change what is left to a third or to three times as much.
  constexpr RingSizes kWanted{256 << 20, 0, 256 << 10};
  const Checkpoint checkpoint = small_model(20, 61);
  const auto free = make_host_device()->memory();
  ASSERT_TRUE(free.is_ok());
  const auto update_within = [&](std::uint64_t bytes_of_each, std::vector<TestEngine>& engines,
                                 std::vector<UpdateReport>& reports) {
    const double share =
        2.0 * static_cast<double>(bytes_of_each) / static_cast<double>(free->free_bytes);
    Job job({.ranks = 2,
             .collective = "peer",
             .sizes = kWanted,
             .adjust = [=](ParameterServerOptions& options) { options.memory_fraction = share; }});
    EXPECT_TRUE(job.load("c", checkpoint).is_ok());
    const auto statuses = job.update("c", job.call(engines));
    reports = job.reports;
    return statuses;
  };
  std::vector<UpdateReport> reports;

  auto engines = make_engines(1, 2);
  expect_ok(update_within(16 << 20, engines, reports));
  expect_whole(engines, checkpoint);
  for (const UpdateReport& report : reports) {
    EXPECT_LT(report.ring_bytes, kWanted.ring);
    EXPECT_GT(report.staging_bytes, 0u);
  }

  engines = make_engines(1, 2);
  expect_ok(update_within(440 << 10, engines, reports));
  expect_whole(engines, checkpoint);
  for (const UpdateReport& report : reports) {
    EXPECT_LT(report.ring_bytes, 3u << 20);
    EXPECT_EQ(report.staging_bytes, 0u);
  }

  engines = make_engines(1, 2);
  for (const Status& status : update_within(16 << 10, engines, reports)) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("model.embed_tokens.weight"));
    EXPECT_THAT(status.message(), HasSubstr("PS_MEM_FRACTION"));
  }
  for (const TestLoader& loader : engines[0].loaders) EXPECT_TRUE(loader.memory.empty());
}

TEST(Update, LittleStagingForManyHosts) {
  const Checkpoint checkpoint = small_model(8, 59);
  Job job({.ranks = 7,
           .host_ids = {"a", "a", "b", "b", "b", "c", "d"},
           .collective = "peer",
           .sizes = kSmallRing});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 7);
  for (int round = 0; round < 3; ++round) {
    expect_ok(job.update("c", job.call(engines)));
    expect_whole(engines, checkpoint);
  }
}

TEST(Update, DifferentCollectivesAreExplained) {
  Job job({.ranks = 2, .adjust = [](ParameterServerOptions& options) {
             if (options.rank == 1) options.collective = "peer";
           }});
  ASSERT_TRUE(job.load("c", small_model(1, 53)).is_ok());
  auto engines = make_engines(1, 2);
  for (const Status& status : job.update("c", job.call(engines)))
    EXPECT_THAT(status.message(), HasSubstr("collectives"));
}

TEST_P(UpdateOverCollective, SubsetsOfRecipientsAndOwnersThatAreNone) {
  const Checkpoint checkpoint = small_model(4, 13);
  for (const auto& hosts :
       {std::vector<std::string>{}, std::vector<std::string>{"a", "a", "b", "b"}}) {
    JobOptions job_options = job_of(4);
    job_options.host_ids = hosts;
    Job job(job_options);
    ASSERT_TRUE(job.load("c", checkpoint).is_ok());
    // Back to back: each begins while ranks of the one before it come home.
    for (const std::vector<int>& recipients :
         {std::vector<int>{2}, std::vector<int>{3, 1}, std::vector<int>{1, 2},
          std::vector<int>{2, 0, 1}, std::vector<int>{0}, std::vector<int>{3, 2, 1, 0},
          std::vector<int>{}}) {
      const std::size_t workers = recipients.empty() ? 4 : recipients.size();
      auto engines = make_engines(1, static_cast<int>(workers));
      UpdateOptions options;
      options.recipients = recipients;
      expect_ok(job.update("c", job.call(engines), options));
      expect_whole(engines, checkpoint);
      EXPECT_EQ(options.recipients, recipients) << "the caller's list is untouched";
    }
  }
}

TEST_P(UpdateOverCollective, OwnersNeedNotCallUpdate) {
  const Checkpoint checkpoint = small_model(3, 17);
  Job job(job_of(3));
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 1);
  UpdateOptions options;
  options.recipients = {1};
  options.all_ranks_call = false;
  expect_ok(job.run(
      [&](int, ParameterServer& server) {
        return server.update("c", job.call(engines), options).status();
      },
      {1}));
  expect_whole(engines, checkpoint);
}

TEST_P(UpdateOverCollective, RanksWithoutAPartAndAnEmptyCheckpoint) {
  Checkpoint one;
  one["only"] = random_tensor("only", 100, 1);
  Job job(job_of(3));
  ASSERT_TRUE(job.load("one", one).is_ok());
  auto engines = make_engines(1, 3);
  expect_ok(job.update("one", job.call(engines)));
  expect_whole(engines, one);

  ASSERT_TRUE(job.load("none", {}).is_ok());
  auto others = make_engines(1, 3);
  expect_ok(job.update("none", job.call(others)));
  expect_whole(others, {});
}

TEST_P(UpdateOverCollective, EqualCopiesOnSeveralRanksAreSentOnce) {
  const Checkpoint checkpoint = small_model(4, 19);
  Job job(job_of(3));
  expect_ok(job.run([&](int, ParameterServer& server) -> Status {
    Registration part;
    for (const auto& [name, tensor] : checkpoint)
      part.tensors.push_back({tensor.info, tensor.bytes.data()});
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", part));
    return server.gather_metas("c");
  }));
  auto engines = make_engines(1, 3);
  expect_ok(job.update("c", job.call(engines)));
  expect_whole(engines, checkpoint);
  std::uint64_t filled = 0;
  for (const UpdateReport& report : job.reports) filled += report.filled_bytes;
  EXPECT_LT(filled, 2 * job.reports[0].total_bytes);
}

TEST(Update, DifferentCopiesOfOneNameAreRefusedWithBothRanks) {
  Job job({.ranks = 3});
  const auto statuses = job.run([&](int rank, ParameterServer& server) -> Status {
    const OwnedTensor mine = random_tensor("w", 1000, rank == 2 ? 7 : 8);
    CKPT_RETURN_IF_ERROR(
        server.register_checkpoint("c", {.tensors = {{mine.info, mine.bytes.data()}}}));
    return server.gather_metas("c");
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("\"w\""));
    EXPECT_THAT(status.message(), HasSubstr("2"));
  }
}

TEST_P(UpdateOverCollective, ASecondPassServesADraftModel) {
  const Checkpoint checkpoint = small_model(3, 23);
  JobOptions options = job_of(4);
  options.instance_size = 2;
  Job job(options);
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(2, 2);
  // Only the engine of ranks 2 and 3 has a draft model.
  const EngineCall once = job.call(engines, 1), twice = job.call(engines, 2);
  expect_ok(job.update("c", [&](const std::vector<WorkerAddress>& all, EngineCallContext& context) {
    return context.rank() == 2 ? twice(all, context) : once(all, context);
  }));
  expect_whole(engines, checkpoint);
  EXPECT_EQ(job.reports[0].passes, 1);
  EXPECT_EQ(job.reports[2].passes, 2);
  EXPECT_EQ(job.reports[3].passes, 2);
  EXPECT_EQ(engines[1].loaders[1].finished, 2);
}

TEST_P(UpdateOverCollective, PreparedIsNotYetSeenByTheEngine) {
  const Checkpoint checkpoint = small_model(2, 29);
  Job job(job_of(2));
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = make_engines(1, 2);
  std::vector<std::unique_ptr<PreparedUpdate>> prepared(2);
  expect_ok(job.run([&](int rank, ParameterServer& server) -> Status {
    CKPT_ASSIGN_OR_RETURN(prepared[static_cast<std::size_t>(rank)], server.prepare("c", {}));
    EXPECT_EQ(server.prepare("c", {}).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(server.unregister_checkpoint("c").code(), StatusCode::kFailedPrecondition);
    return Status();
  }));
  EXPECT_TRUE(engines[0].loaders[0].memory.empty());
  expect_ok(job.run([&](int rank, ParameterServer& server) -> Status {
    return server.commit(std::move(prepared[static_cast<std::size_t>(rank)]), job.call(engines))
        .status();
  }));
  expect_whole(engines, checkpoint);
}

TEST_P(UpdateOverCollective, APreparedUpdateCanBeGivenUp) {
  const Checkpoint checkpoint = small_model(2, 31);
  Job job(job_of(2));
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  expect_ok(job.run([&](int, ParameterServer& server) -> Status {
    CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare("c", {}));
    server.abort(std::move(prepared), aborted("training went wrong"));
    return Status();
  }));
  auto engines = make_engines(1, 2);
  expect_ok(job.update("c", job.call(engines)));
  expect_whole(engines, checkpoint);
}

TEST(Update, WrongOrdersOfCallsAreExplained) {
  const Checkpoint checkpoint = small_model(1, 37);
  Job job({.ranks = 2});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  const auto nobody = [](const std::vector<WorkerAddress>&, EngineCallContext&) {
    return Status();
  };
  expect_ok(job.run([&](int, ParameterServer& server) -> Status {
    const OwnedTensor tensor = random_tensor("x", 10, 1);
    EXPECT_EQ(
        server.register_checkpoint("c", {.tensors = {{tensor.info, tensor.bytes.data()}}}).code(),
        StatusCode::kAlreadyExists);
    const Status other = server.update("other", nobody).status();
    EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(other.message(), HasSubstr("gather_metas"));
    EXPECT_TRUE(other.rank().has_value()) << "the first to say so, for all";
    UpdateOptions options;
    options.recipients = {1, 1};
    EXPECT_EQ(server.update("c", nobody, options).status().code(), StatusCode::kInvalidArgument);
    options.recipients = {0, 2};
    EXPECT_THAT(server.update("c", nobody, options).status().message(), HasSubstr("rank 2"));
    EXPECT_EQ(server.unregister_checkpoint("other").code(), StatusCode::kNotFound);
    EXPECT_TRUE(server.unregister_checkpoint("other", true).is_ok());
    return Status();
  }));
  // The refused registration left the first one whole.
  auto engines = make_engines(1, 2);
  expect_ok(job.update("c", job.call(engines)));
  expect_whole(engines, checkpoint);
}

TEST(Update, MetasCanBeExported) {
  const Checkpoint checkpoint = small_model(1, 41);
  Job job({.ranks = 2});
  EXPECT_EQ(job.server(0).export_metas().status().code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  const auto first = job.server(0).export_metas(), second = job.server(1).export_metas();
  ASSERT_TRUE(first.is_ok());
  EXPECT_EQ(*first, *second);
  EXPECT_THAT(*first, HasSubstr("model.embed_tokens.weight"));
}

TEST(Update, AWorkerMayComeLate) {
  const Checkpoint checkpoint = small_model(2, 43);
  Job job({.ranks = 2});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  for (const int milliseconds : {150, 1500}) {
    auto engines = make_engines(1, 2);
    const EngineCall call = job.call(engines);
    expect_ok(
        job.update("c", [&](const std::vector<WorkerAddress>& all, EngineCallContext& context) {
          std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
          return call(all, context);
        }));
    expect_whole(engines, checkpoint);
  }
}

TEST(Update, TheSharedPoolServesOneCheckpointAfterTheOther) {
  Job job({.ranks = 1});
  const OwnedTensor tensor = random_tensor("w", 1 << 20, 3);
  const auto registration = [&] {
    Registration part;
    part.tensors = {{tensor.info, tensor.bytes.data()}};
    part.use_shared_pool = true;
    return part;
  };
  ParameterServer& server = job.server(0);
  ASSERT_TRUE(server.register_checkpoint("a", registration()).is_ok());
  EXPECT_EQ(server.register_checkpoint("b", registration()).code(),
            StatusCode::kFailedPrecondition);
  ASSERT_TRUE(server.unregister_checkpoint("a").is_ok());
  // Files go into it as well: those of /dev/shm, too, which stay where they are.
  for (const auto& folder : {::testing::TempDir(), std::string("/dev/shm")}) {
    const std::string path = concat(folder, "/ckpt-pool-", random_id());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(tensor.bytes.data()), 1 << 20);
    Registration files;
    files.files = {{tensor.info, path, 0}};
    files.use_shared_pool = true;
    files.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
    ASSERT_TRUE(server.register_checkpoint("files", files).is_ok());
    EXPECT_EQ(server.register_checkpoint("b", registration()).code(),
              StatusCode::kFailedPrecondition)
        << "the pool is in use";
    ASSERT_TRUE(server.gather_metas("files").is_ok());
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
    // Nothing of the file is used any more.
    std::filesystem::resize_file(path, 0);
    auto engines = make_engines(1, 1);
    expect_ok(job.update("files", job.call(engines)));
    EXPECT_EQ(engines[0].loaders[0].memory["w"], tensor.bytes);
    ASSERT_TRUE(server.unregister_checkpoint("files").is_ok());
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace ckpt::testing
