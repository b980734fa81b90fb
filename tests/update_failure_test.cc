// What happens when something goes wrong in an update: every rank returns the first cause, soon,
// and the next update works.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include "base/fd.h"
#include "base/host.h"
#include "base/strings.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class UpdateFailure : public ::testing::TestWithParam<Rings> {
 protected:
  // What others had open when an update failed goes when the last of them has closed it.
  void TearDown() override {
    const auto patience = Clock::now() + std::chrono::seconds(30);
    while (!job_.shared_objects().empty() && Clock::now() < patience)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_THAT(job_.shared_objects(), ::testing::IsEmpty());
  }
  void SetUp() override { ASSERT_TRUE(job_.load("c", checkpoint_).is_ok()); }

  // Every rank failed, all with the same cause, which contains `text`.
  void expect_cause(const std::vector<Status>& statuses, const std::string& text) {
    for (const Status& status : statuses) {
      EXPECT_FALSE(status.is_ok());
      EXPECT_THAT(status.to_string(), HasSubstr(text));
      EXPECT_EQ(status.to_string(), statuses[0].to_string()) << "the first cause is everybody's";
    }
  }

  void expect_next_update_works() {
    std::vector<TestEngine> engines;
    engines.emplace_back(2);
    engines.emplace_back(2);
    for (const Status& status : job_.update("c", job_.call(engines))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    for (const TestEngine& engine : engines) {
      for (const TestLoader& loader : engine.loaders) EXPECT_EQ(loader.difference(checkpoint_), "");
    }
    if (!GetParam().small()) return;
    for (const UpdateReport& report : job_.reports) EXPECT_GT(report.buckets, 10u);
  }

  std::vector<TestEngine> two_engines() {
    std::vector<TestEngine> engines;
    engines.emplace_back(2);
    engines.emplace_back(2);
    return engines;
  }

  Checkpoint checkpoint_ = small_model(6, 101);
  Job job_{{.ranks = 4,
            .instance_size = 2,
            .host_ids = GetParam().host_ids,
            .collective = GetParam().collective,
            .sizes = GetParam().sizes}};
};
/// With buckets behind the one that is loaded, and places in the ring that were used before.
class UpdateFailureInMidRing : public UpdateFailure {};

const std::vector<std::string> kTwoHosts = {"a", "a", "b", "b"};

std::string name_of(const ::testing::TestParamInfo<Rings>& rings) { return rings.param.name; }

INSTANTIATE_TEST_SUITE_P(, UpdateFailure,
                         ::testing::Values(Rings{"OneRing", "auto", kLargeRing},
                                           Rings{"OneSmallRing", "auto", kSmallRing},
                                           Rings{"SmallOwnRingsOfHosts", "peer", kSmallRing,
                                                 kTwoHosts},
                                           Rings{"NcclOverHosts", "nccl", kSmallRing, kTwoHosts}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    , UpdateFailureInMidRing,
    ::testing::Values(Rings{"OneSmallRing", "auto", kSmallRing},
                      Rings{"SmallOwnRings", "peer", kSmallRing},
                      Rings{"SmallRingsOfHosts", "auto", kSmallRing, kTwoHosts},
                      Rings{"SmallOwnRingsOfHosts", "peer", kSmallRing, kTwoHosts},
                      Rings{"Nccl", "nccl", kSmallRing},
                      Rings{"NcclOverHosts", "nccl", kSmallRing, kTwoHosts}),
    name_of);

TEST_P(UpdateFailure, AWorkerRefusesATensor) {
  auto engines = two_engines();
  engines[1].loaders[0].refuse_tensor = "model.layers.3.mlp.down_proj.weight";
  const auto statuses = job_.update("c", job_.call(engines));
  expect_cause(statuses, "no parameter named model.layers.3.mlp.down_proj.weight");
  for (const TestEngine& engine : engines) {
    for (const TestLoader& loader : engine.loaders)
      EXPECT_EQ(loader.finished, 0) << "nobody may serve half a model";
  }
  expect_next_update_works();
}

TEST_P(UpdateFailure, AWorkerFailsAfterLoading) {
  auto engines = two_engines();
  engines[0].loaders[1].finish_error = "quantisation failed";
  expect_cause(job_.update("c", job_.call(engines)), "quantisation failed");
  expect_next_update_works();
}

TEST_P(UpdateFailure, TheEngineCallFails) {
  const auto statuses =
      job_.update("c", [](const std::vector<WorkerAddress>&, EngineCallContext& context) -> Status {
        if (context.rank() == 2) return peer_error("the engine says 404");
        return Status();
      });
  expect_cause(statuses, "rank 2: peer error: the engine says 404");
  expect_next_update_works();
}

TEST_P(UpdateFailure, TheEngineCallThrows) {
  const auto statuses =
      job_.update("c", [](const std::vector<WorkerAddress>&, EngineCallContext&) -> Status {
        throw std::runtime_error("boom");
      });
  for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("boom"));
  expect_next_update_works();
}

TEST_P(UpdateFailure, TheEngineAnswersButNoWorkerConnects) {
  const auto begin = Clock::now();
  const auto statuses = job_.update(
      "c", [](const std::vector<WorkerAddress>&, EngineCallContext&) { return Status(); });
  for (const Status& status : statuses)
    EXPECT_THAT(status.message(), HasSubstr("no worker has connected"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30)) << "not the whole deadline";
  expect_next_update_works();
}

TEST_P(UpdateFailure, TheDeadlinePasses) {
  UpdateOptions options;
  options.timeout_seconds = 1;
  auto engines = two_engines();
  for (TestEngine& engine : engines) {
    for (TestLoader& loader : engine.loaders) loader.seconds_per_tensor = 0.04;
  }
  const auto begin = Clock::now();
  const auto statuses = job_.update("c", job_.call(engines), options);
  for (const Status& status : statuses)
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  expect_next_update_works();
}

TEST_P(UpdateFailure, OneRankGivesAPreparedUpdateUp) {
  auto engines = two_engines();
  const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
    CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare("c", {.instance_size = 2}));
    if (rank == 3) {
      server.abort(std::move(prepared), aborted("the trainer has diverged"));
      return aborted("the trainer has diverged").on_rank(3);
    }
    return server.commit(std::move(prepared), job_.call(engines)).status();
  });
  expect_cause(statuses, "the trainer has diverged");
  expect_next_update_works();
}

TEST_P(UpdateFailure, OneRankIsGivenOtherOptions) {
  auto engines = two_engines();
  const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
    UpdateOptions options;
    options.instance_size = 2;
    options.verify = rank != 1;
    return server.update("c", job_.call(engines), options).status();
  });
  for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("verification"));
  expect_next_update_works();
}

// Whatever goes wrong on one rank before the update has begun must not cost the others their whole
// deadline.
TEST_P(UpdateFailure, OneRankHasNotGathered) {
  auto engines = two_engines();
  const auto begin = Clock::now();
  const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
    UpdateOptions options;
    options.instance_size = 2;
    return server.update(rank == 2 ? "other" : "c", job_.call(engines), options).status();
  });
  expect_cause(statuses,
               "rank 2: failed precondition: checkpoint \"other\" is not the gathered one");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  expect_next_update_works();
}

TEST_P(UpdateFailure, OneRankHasAnotherInstanceSize) {
  auto engines = two_engines();
  for (const int wrong : {3, 4}) {
    const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
      UpdateOptions options;
      options.instance_size = rank == 1 ? wrong : 2;
      return server.update("c", job_.call(engines), options).status();
    });
    for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("instance size"));
  }
  expect_next_update_works();
}

TEST_P(UpdateFailure, APreparedUpdateIsDropped) {
  struct Case {
    std::vector<int> recipients;
    int dropper;
  };
  for (const Case& one : {Case{{}, 0}, Case{{}, 3}, Case{{0, 1}, 0}}) {
    const auto begin = Clock::now();
    const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
      UpdateOptions options;
      options.recipients = one.recipients;
      options.instance_size = 1;
      CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare("c", options));
      if (rank == one.dropper) {
        prepared.reset();
        return aborted("given up");
      }
      const auto wait = [](const std::vector<WorkerAddress>&,
                           EngineCallContext& context) -> Status {
        while (!context.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return Status();
      };
      return server.commit(std::move(prepared), wait).status();
    });
    for (const Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("given up"));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  }
  expect_next_update_works();
}

TEST_P(UpdateFailure, ACancelledCallMayAskItsContext) {
  std::atomic<bool> asked{false};
  const auto statuses = job_.update(
      "c", [&](const std::vector<WorkerAddress>&, EngineCallContext& context) -> Status {
        if (context.rank() == 2) return peer_error("no");
        std::atomic<bool> stop{false};
        context.on_cancel([&] { stop = asked = context.cancelled(); });
        while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        context.on_cancel({});
        return aborted("stopped");
      });
  expect_cause(statuses, "rank 2: peer error: no");
  EXPECT_TRUE(asked);
  expect_next_update_works();
}

TEST_P(UpdateFailure, CancelledByAnotherThread) {
  const auto statuses = job_.update(
      "c", [&](const std::vector<WorkerAddress>&, EngineCallContext& context) -> Status {
        if (context.rank() == 3) job_.server(3).cancel(aborted("interrupted"));
        while (!context.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return Status();
      });
  expect_cause(statuses, "rank 3: aborted: interrupted");
  expect_next_update_works();
}

TEST_P(UpdateFailureInMidRing, CancelledWhileBucketsFlow) {
  for (const int victim : {0, 3}) {
    auto engines = two_engines();
    const EngineCall call = job_.call(engines);
    const auto statuses = job_.run([&](int rank, ParameterServer& server) -> Status {
      UpdateOptions options;
      options.instance_size = 2;
      options.engine_answer_means_done = true;
      if (rank == victim) {
        options.progress = [&server](std::uint64_t loaded, std::uint64_t total) {
          if (loaded > total / 3) server.cancel(aborted("interrupted"));
        };
      }
      return server.update("c", call, options).status();
    });
    expect_cause(statuses, concat("rank ", victim, ": aborted: interrupted"));
    expect_next_update_works();
  }
}

TEST_P(UpdateFailureInMidRing, SlowWorkersOfOneInstanceHoldUpTheOther) {
  auto engines = two_engines();
  for (TestLoader& loader : engines[1].loaders) loader.seconds_per_tensor = 0.002;
  for (const Status& status : job_.update("c", job_.call(engines)))
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  for (const TestEngine& engine : engines) {
    for (const TestLoader& loader : engine.loaders) EXPECT_EQ(loader.difference(checkpoint_), "");
  }
}

TEST_P(UpdateFailure, AWaitForOtherRanksIsCancelled) {
  ParameterServer& server = job_.server(0);
  const std::vector<std::function<Status()>> waits = {
      [&] { return server.barrier(60); },
      [&] { return server.gather_metas("other"); },
      [&] { return server.prepare("c", {}).status(); },
      [&] {
        UpdateOptions options;
        options.recipients = {1};
        CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare("c", options));
        return server.commit(std::move(prepared), {}).status();
      },
  };
  for (const auto& wait : waits) {
    auto waiting = std::async(std::launch::async, wait);
    while (waiting.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
      server.cancel(aborted("enough"));
    }
    EXPECT_THAT(waiting.get().message(), HasSubstr("enough"));
  }
  // The others may hear of it once, at the call that rank 0 has left; rank 0 waits for them in its
  // next one meanwhile.
  auto engines = two_engines();
  const EngineCall call = job_.call(engines);
  const auto statuses = job_.run([&](int, ParameterServer& any_rank) {
    UpdateOptions options;
    options.instance_size = 2;
    options.engine_answer_means_done = true;
    auto report = any_rank.update("c", call, options);
    if (report.status().message().find("gave up") != std::string::npos) {
      report = any_rank.update("c", call, options);
    }
    return report.status();
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.is_ok()) << status.to_string();
}

TEST(UpdateIntegrity, CorruptionBetweenRegistrationAndLoadIsFound) {
  // A file in /dev/shm is used in place: whoever still has it open can damage the registered
  // memory.
  const std::string path = concat("/dev/shm/ckpt-integrity-", random_id(), ".bin");
  const OwnedTensor tensor = random_tensor("model.layers.0.weight", 3 << 20, 5);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tensor.bytes.data()), 3 << 20);
  UniqueFd file(::open(path.c_str(), O_RDWR));
  ASSERT_TRUE(file);

  Job job({.ranks = 2});
  const auto registered = job.run([&](int rank, ParameterServer& server) -> Status {
    Registration part;
    part.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
    if (rank == 1) part.files = {{tensor.info, path, 0}};
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", part));
    return server.gather_metas("c");
  });
  for (const Status& status : registered) ASSERT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_FALSE(std::filesystem::exists(path)) << "used in place, and removed after success";

  std::vector<TestEngine> engines;
  engines.emplace_back(2);
  const char wrong = static_cast<char>(tensor.bytes[1234567] ^ std::byte{0x10});
  ASSERT_EQ(::pwrite(file.get(), &wrong, 1, 1234567), 1);
  for (const Status& status : job.update("c", job.call(engines))) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("model.layers.0.weight"));
  }

  const char right = static_cast<char>(tensor.bytes[1234567]);
  ASSERT_EQ(::pwrite(file.get(), &right, 1, 1234567), 1);
  for (const Status& status : job.update("c", job.call(engines)))
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_EQ(engines[0].loaders[0].memory["model.layers.0.weight"], tensor.bytes);
}

TEST(UpdateIntegrity, FilesInSharedMemoryStayWhenRegistrationFails) {
  const std::string path = concat("/dev/shm/ckpt-integrity-", random_id(), ".bin");
  std::ofstream(path, std::ios::binary) << std::string(100, 'x');
  Job job({.ranks = 1});
  Registration part;
  part.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
  part.files = {{*make_tensor_info("a", DType::kU8, {100}), path, 0},
                {*make_tensor_info("b", DType::kU8, {100}), "/no/such/file", 0}};
  EXPECT_FALSE(job.server(0).register_checkpoint("c", part).is_ok());
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
}

// Each rank has a tensor of the one file, and registers when it gets to it.
TEST(UpdateIntegrity, AFileOfSeveralRanksLastsUntilAllHaveRegistered) {
  for (const auto use :
       {SharedMemoryFiles::kRead, SharedMemoryFiles::kUse, SharedMemoryFiles::kUseAndRemove}) {
    const std::string path = concat("/dev/shm/ckpt-integrity-", random_id(), ".bin");
    Checkpoint checkpoint;
    {
      std::ofstream file(path, std::ios::binary);
      for (int rank = 0; rank < 3; ++rank) {
        OwnedTensor tensor = random_tensor(concat("model.layers.", rank, ".weight"), 10000, 7);
        file.write(reinterpret_cast<const char*>(tensor.bytes.data()), 10000);
        checkpoint[tensor.info.name] = std::move(tensor);
      }
    }
    Job job({.ranks = 3});
    for (int rank = 0; rank < 3; ++rank) {
      Registration part;
      part.shared_memory_files = use;
      part.files = {{checkpoint.at(concat("model.layers.", rank, ".weight")).info, path,
                     static_cast<std::uint64_t>(rank) * 10000}};
      const Status registered = job.server(rank).register_checkpoint("c", part);
      ASSERT_TRUE(registered.is_ok()) << registered.to_string();
    }
    EXPECT_TRUE(std::filesystem::exists(path));
    for (const Status& status :
         job.run([](int, ParameterServer& server) { return server.gather_metas("c"); })) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    EXPECT_EQ(std::filesystem::exists(path), use != SharedMemoryFiles::kUseAndRemove);
    std::vector<TestEngine> engines;
    engines.emplace_back(3);
    for (const Status& status : job.update("c", job.call(engines)))
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    for (const TestLoader& loader : engines[0].loaders)
      EXPECT_EQ(loader.difference(checkpoint), "");
    EXPECT_EQ(std::filesystem::exists(path), use != SharedMemoryFiles::kUseAndRemove);
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace ckpt::testing
