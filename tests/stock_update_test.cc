// A job whose workers are those of the Python package (scripted, over its wire): what they do
// silently wrong (docs/wire-stock.md) is a prompt, explained error on every rank, and no other
// worker returns as if all were well.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/fd.h"
#include "base/host.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "support/job.h"
#include "worker/test_stock_worker.h"

namespace ckpt::testing {
namespace {

using test::Step;
using test::StockOutcome;
using test::StockScript;
using test::Verb;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// An inference engine whose workers are stock ones, but for those that have a loader.
struct StockEngine {
  explicit StockEngine(int workers)
      : scripts(static_cast<std::size_t>(workers)),
        outcomes(scripts.size()),
        loaders(scripts.size()),
        received(scripts.size()) {}

  /// Its answer comes when all workers have ended: an error where one did not return well.
  Status update(const std::map<std::string, std::string>& addresses, int workers_of_each = 1) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      const std::string address = addresses.at(concat("CPU-", i));
      for (int k = 0; k < workers_of_each; ++k) {
        threads.emplace_back([this, i, k, address] {
          if (loaders[i]) {
            received[i] = update_weights(address, *loaders[i]).status();
            return;
          }
          const StockOutcome outcome = test::run_stock_worker(address, scripts[i], stop);
          const std::lock_guard lock(mutex);
          returned += outcome.returned ? 1 : 0;
          if (k == 0) outcomes[i] = outcome;
          ++ended;
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      const bool well = loaders[i] ? received[i].is_ok() : outcomes[i].returned;
      if (!well) return peer_error(concat("the engine answers 500: worker ", i));
    }
    return Status();
  }

  std::vector<StockScript> scripts;
  std::vector<StockOutcome> outcomes;
  std::vector<std::unique_ptr<TestLoader>> loaders;  ///< a native worker where it is not null
  std::vector<Status> received;                      ///< by native workers
  std::mutex mutex;
  std::atomic<int> ended{0};
  int returned = 0;  ///< stock workers that returned as after a whole update
  std::atomic<bool> stop{false};
};

constexpr int kInstanceSize = 2;

EngineCall call_of(std::vector<std::unique_ptr<StockEngine>>& engines, int workers_of_each = 1) {
  return [&engines, workers_of_each](const std::vector<WorkerAddress>& all,
                                     EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses,
                          engine_instance(all, context.rank(), kInstanceSize));
    if (addresses.empty()) return Status();
    return engines.at(static_cast<std::size_t>(context.rank() / kInstanceSize))
        ->update(addresses, workers_of_each);
  };
}

std::vector<std::unique_ptr<StockEngine>> two_engines() {
  std::vector<std::unique_ptr<StockEngine>> engines;
  for (int i = 0; i < 2; ++i) engines.push_back(std::make_unique<StockEngine>(kInstanceSize));
  return engines;
}

class StockUpdate : public ::testing::TestWithParam<Rings> {
 protected:
  void TearDown() override { EXPECT_THAT(job_.shared_objects(), ::testing::IsEmpty()); }
  void SetUp() override { ASSERT_TRUE(job_.load("c", checkpoint_).is_ok()); }

  void expect_update_works() {
    auto engines = two_engines();
    // Both wires in one job.
    engines[1]->loaders[0] = std::make_unique<TestLoader>();
    for (const Status& status : job_.update("c", call_of(engines)))
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    for (int rank = 0; rank < 4; ++rank) {
      const UpdateReport& report = job_.reports[static_cast<std::size_t>(rank)];
      EXPECT_EQ(report.wire, rank == 2 ? "native" : "stock");
      EXPECT_EQ(report.loaded_bytes, report.total_bytes);
      EXPECT_EQ(report.verified_tensors, checkpoint_.size());
      const auto verify =
          std::ranges::find(report.stages, std::string("verify"), &StageReport::name);
      ASSERT_EQ(verify != report.stages.end(), rank != 2) << "the rank checks for a stock worker";
      if (rank != 2) {
        EXPECT_EQ(verify->bytes, report.total_bytes);
      }
    }
    EXPECT_EQ(engines[0]->returned, 2);
    EXPECT_EQ(engines[1]->returned, 1);
    EXPECT_EQ(engines[1]->loaders[0]->difference(checkpoint_), "");
  }

  /// Every rank failed with the same cause, and every worker but that of rank 1 has raised it.
  void expect_everybody_hears(const std::vector<Status>& statuses, StatusCode code,
                              const std::string& text,
                              const std::vector<std::unique_ptr<StockEngine>>& engines) {
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), code) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(text));
      EXPECT_EQ(status.to_string(), statuses[0].to_string()) << "the first cause is everybody's";
    }
    for (int rank = 0; rank < 4; ++rank) {
      const StockEngine& engine = *engines[static_cast<std::size_t>(rank / kInstanceSize)];
      const auto worker = static_cast<std::size_t>(rank % kInstanceSize);
      if (engine.loaders[worker]) {
        EXPECT_THAT(engine.received[worker].message(), HasSubstr(text));
        EXPECT_EQ(engine.loaders[worker]->finished, 0) << "nobody may serve half a model";
        continue;
      }
      EXPECT_FALSE(engine.outcomes[worker].returned) << "rank " << rank;
      if (rank != 1) {
        EXPECT_THAT(engine.outcomes[worker].raised, HasSubstr(text)) << rank;
      }
    }
  }

  Checkpoint checkpoint_ = small_model(6, 211);
  Job job_{{.ranks = 4,
            .instance_size = kInstanceSize,
            .host_ids = GetParam().host_ids,
            .collective = GetParam().collective,
            .sizes = GetParam().sizes,
            .adjust = [](ParameterServerOptions& options) { options.late_worker_seconds = 5; }}};
};

std::string name_of(const ::testing::TestParamInfo<Rings>& rings) { return rings.param.name; }

INSTANTIATE_TEST_SUITE_P(
    , StockUpdate,
    ::testing::Values(Rings{"OneSmallRing", "auto", kSmallRing},
                      Rings{"SmallOwnRings", "peer", kSmallRing},
                      Rings{"SmallRingsOfHosts", "auto", kSmallRing, {"a", "a", "b", "b"}}),
    name_of);

TEST_P(StockUpdate, BothWiresServeOneJob) {
  for (int round = 0; round < 2; ++round) expect_update_works();
}

// Each worker has a second one beside it from the start (SGLang's draft model): it must see nothing
// of the first one's pass, and gets one of its own.
TEST_P(StockUpdate, ASecondWorkerOfEachRankGetsAPassOfItsOwn) {
  auto engines = two_engines();
  for (const Status& status : job_.update("c", call_of(engines, 2)))
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  for (const auto& engine : engines) EXPECT_EQ(engine->returned, 4);
  for (const UpdateReport& report : job_.reports) {
    EXPECT_EQ(report.passes, 2);
    EXPECT_EQ(report.loaded_bytes, 2 * report.total_bytes);
  }
}

struct Misdeed {
  const char* name;
  Step at;
  Verb verb;
  StatusCode code;
  const char* text;
};

constexpr Misdeed kMisdeeds[] = {
    {"an error over the handle", Step::kHandle, Verb::kTraceback, StatusCode::kPeerError,
     "failed to open the ring: RuntimeError: no memory"},
    {"no answer to the handle", Step::kHandle, Verb::kLeave, StatusCode::kPeerLost,
     "open the ring"},
    {"an error while it loads", Step::kBucket, Verb::kTraceback, StatusCode::kPeerError,
     "load bucket 1: RuntimeError: no memory"},
    {"an unknown dtype, or a process that is gone", Step::kBucket, Verb::kLeave,
     StatusCode::kPeerLost, "dtype"},
    {"no answer to the release", Step::kRelease, Verb::kLeave, StatusCode::kPeerLost,
     "release the ring"},
};

TEST_P(StockUpdate, WhatAWorkerDoesWrongIsEverybodysError) {
  for (const Misdeed& misdeed : kMisdeeds) {
    for (const bool with_native : {false, true}) {
      SCOPED_TRACE(concat(misdeed.name, with_native ? ", beside a native worker" : ""));
      auto engines = two_engines();
      engines[0]->scripts[1] = {misdeed.at, 2, misdeed.verb, {}, {}};
      if (with_native) engines[1]->loaders[0] = std::make_unique<TestLoader>();
      const auto statuses = job_.update("c", call_of(engines));
      expect_everybody_hears(statuses, misdeed.code, misdeed.text, engines);
      EXPECT_THAT(statuses[0].message(), HasSubstr("worker of rank 1 (stock wire"));
    }
  }
  expect_update_works();
}

// By then every other worker has all weights, and may have run its own hook and returned: the
// engine's answer can come before the loss of the worker is seen, and is as good a cause.
TEST_P(StockUpdate, AHookThatRaisesIsEverybodysError) {
  auto engines = two_engines();
  engines[0]->scripts[1] = {Step::kHook, 1, Verb::kLeave, {}, {}};
  const auto statuses = job_.update("c", call_of(engines));
  for (const Status& status : statuses) {
    EXPECT_EQ(status.to_string(), statuses[0].to_string()) << "the first cause is everybody's";
    EXPECT_THAT(status.message(), AnyOf(HasSubstr("post-load hook raised"),
                                        HasSubstr("the engine answers 500: worker 1")));
  }
  for (const auto& engine : engines) {
    for (const StockOutcome& outcome : engine->outcomes) {
      EXPECT_TRUE(outcome.returned || !outcome.raised.empty() ||
                  &outcome == &engines[0]->outcomes[1]);
    }
  }
  expect_update_works();
}

TEST_P(StockUpdate, AWorkerThatHangsCostsTheDeadlineAndNoMore) {
  auto engines = two_engines();
  engines[0]->scripts[1] = {Step::kBucket, 2, Verb::kHang, {}, {}};
  UpdateOptions options;
  options.timeout_seconds = 3;
  auto updated =
      std::async(std::launch::async, [&] { return job_.update("c", call_of(engines), options); });
  // The ranks return when their engine call does: all workers but the one that hangs have heard.
  while (engines[0]->ended + engines[1]->ended < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  engines[0]->stop = true;
  for (const Status& status : updated.get())
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  for (const std::size_t worker : {0u, 1u}) {
    EXPECT_FALSE(engines[1]->outcomes[worker].raised.empty());
  }
  expect_update_works();
}

// A worker that does not find its uuid in the map never connects; only the engine's answer tells.
TEST_P(StockUpdate, AWorkerThatNeverConnectsIsToldByTheEnginesAnswer) {
  auto engines = two_engines();
  std::vector<std::thread> started;
  const EngineCall call = [&](const std::vector<WorkerAddress>& all,
                              EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses,
                          engine_instance(all, context.rank(), kInstanceSize));
    if (addresses.empty()) return Status();
    StockEngine& engine = *engines[static_cast<std::size_t>(context.rank() / kInstanceSize)];
    if (context.rank() != 0) return engine.update(addresses);
    started.emplace_back([&engine, address = addresses.at("CPU-0")] {
      engine.outcomes[0] = test::run_stock_worker(address, {}, engine.stop);
    });
    return peer_error("the engine answers 500: KeyError: 'GPU-1'");
  };
  const auto statuses = job_.update("c", call);
  for (std::thread& thread : started) thread.join();
  expect_everybody_hears(statuses, StatusCode::kPeerError, "KeyError: 'GPU-1'", engines);
  expect_update_works();
}

// While a worker still reads its ring, the next update waits for it, and says so to all.
TEST_P(StockUpdate, TheNextUpdateNamesTheWorkerThatStillReads) {
  auto engines = two_engines();
  std::promise<void> reached, go_on;
  engines[0]->scripts[1] = {Step::kBucket,
                            1,
                            Verb::kObey,
                            [&] {
                              reached.set_value();
                              go_on.get_future().wait();
                            },
                            {}};
  // It is no engine's: the call must not wait for it.
  std::thread reader;
  const EngineCall call = [&](const std::vector<WorkerAddress>& all,
                              EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses,
                          engine_instance(all, context.rank(), kInstanceSize));
    if (context.rank() != 0) return Status();
    reader = std::thread([&, address = addresses.at("CPU-1")] {
      engines[0]->outcomes[1] =
          test::run_stock_worker(address, engines[0]->scripts[1], engines[0]->stop);
    });
    reached.get_future().wait();
    return peer_error("the engine answers 500");
  };
  UpdateOptions options;
  options.instance_size = kInstanceSize;
  for (const Status& status : job_.run([&](int, ParameterServer& server) {
         return server.update("c", call, options).status();
       })) {
    EXPECT_THAT(status.message(), HasSubstr("the engine answers 500"));
  }
  options.timeout_seconds = 4;
  for (const Status& status : job_.run([&](int, ParameterServer& server) {
         return server.update("c", call, options).status();
       })) {
    EXPECT_EQ(status.rank(), 1) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("still reads the ring"));
  }
  go_on.set_value();
  reader.join();
  EXPECT_THAT(engines[0]->outcomes[1].raised, HasSubstr("the engine answers 500"));
  expect_update_works();
}

TEST(StockIntegrity, CorruptionBetweenRegistrationAndLoadIsFound) {
  const std::string path = concat("/dev/shm/ckpt-stock-integrity-", random_id(), ".bin");
  const OwnedTensor tensor = random_tensor("model.layers.0.weight", 3 << 20, 5);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tensor.bytes.data()), 3 << 20);
  // Used in place: who has the file open can damage what was registered.
  const UniqueFd file(::open(path.c_str(), O_RDWR));
  Job job({.ranks = 2, .instance_size = kInstanceSize});
  for (const Status& status : job.run([&](int rank, ParameterServer&server) -> Status {
         Registration part;
         part.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
         if (rank == 1) part.files = {{tensor.info, path, 0}};
         CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", part));
         return server.gather_metas("c");
       })) {
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
  for (const bool damaged : {true, false}) {
    const char byte = static_cast<char>(tensor.bytes[1234567] ^ std::byte(damaged ? 0x10 : 0));
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, 1234567), 1);
    auto engines = two_engines();
    const auto statuses = job.update("c", call_of(engines));
    for (const Status& status : statuses) {
      EXPECT_EQ(status.is_ok(), !damaged) << status.to_string();
      if (!damaged) continue;
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("model.layers.0.weight"));
    }
    EXPECT_EQ(engines[0]->returned, damaged ? 0 : 2);
    for (const StockOutcome& outcome : engines[0]->outcomes) {
      EXPECT_EQ(outcome.raised.find("model.layers.0.weight") != std::string::npos, damaged);
    }
  }
}

// The bytes are right in the owner's pool, and wrong where the worker would read them.
TEST(StockIntegrity, CorruptionOfTheRingIsFoundBeforeItIsAnnounced) {
  Checkpoint checkpoint;
  const OwnedTensor& tensor = checkpoint["model.layers.0.weight"] =
      random_tensor("model.layers.0.weight", 3 << 20, 5);
  Job job({.ranks = 2, .instance_size = kInstanceSize});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  for (const bool verify : {true, false}) {
    auto engines = two_engines();
    // When both workers have opened it, and it is full.
    std::atomic<int> opened{0};
    const auto damage = [&] {
      if (++opened < kInstanceSize) {
        while (opened < 2 * kInstanceSize) std::this_thread::yield();
        return;
      }
      for (const std::string& name : job.shared_objects()) {
        auto ring = SharedMemory::open(name);
        if (!ring.is_ok() || ring->size() < tensor.bytes.size()) continue;
        volatile const std::byte* last = ring->data() + tensor.bytes.size() - 1;
        while (*last != tensor.bytes.back() ||
               !std::equal(tensor.bytes.begin(), tensor.bytes.end(), ring->data())) {
          std::this_thread::yield();
        }
        ring->data()[1 << 20] ^= std::byte{1};
      }
      opened = 2 * kInstanceSize;
    };
    for (StockScript& script : engines[0]->scripts) {
      script.at = Step::kHandle;
      script.before = damage;
    }
    UpdateOptions options;
    options.verify = verify;
    for (const Status& status : job.update("c", call_of(engines), options)) {
      if (verify) {
        EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
        EXPECT_THAT(status.message(), HasSubstr("model.layers.0.weight"));
      } else {
        EXPECT_TRUE(status.is_ok()) << status.to_string();
      }
    }
    for (const StockOutcome& outcome : engines[0]->outcomes) {
      EXPECT_EQ(outcome.returned, !verify);
      // Handle and exception: no list of the damaged tensor.
      if (verify) {
        EXPECT_EQ(outcome.messages.size(), 2u);
      }
    }
    for (const UpdateReport& report : job.reports) EXPECT_EQ(report.verified_tensors, 0u);
  }
}

}  // namespace
}  // namespace ckpt::testing
