// Updates out of another job's memory: metas of a job that runs are loaded by one that owns
// nothing.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "base/host.h"
#include "base/strings.h"
#include "checkpoint_engine/transfer_engine.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) ASSERT_TRUE(status.is_ok()) << status.to_string();
}

/// All failed with the same cause, which contains `text`.
void expect_refused(const std::vector<Status>& statuses, const std::string& text) {
  for (const Status& status : statuses) {
    ASSERT_FALSE(status.is_ok());
    EXPECT_THAT(status.to_string(), HasSubstr(text));
    EXPECT_EQ(status.to_string(), statuses[0].to_string()) << "the first cause is everybody's";
  }
}

/// More than a ring, so that an update cannot be fetched whole before it is committed.
Checkpoint large_model() {
  Checkpoint checkpoint = small_model(2, 71);
  for (int i = 0; i < 30; ++i) {
    const std::string name = concat("model.layers.", i, ".mlp.down_proj.weight");
    checkpoint[name] = random_tensor(name, (1 << 20) + i, 1000 + i);
  }
  return checkpoint;
}

/// Commits an update of "c" while `owner` unregisters the memory that it reads, which must wait.
void commit_while_unregistering(ParameterServer& reader, std::unique_ptr<PreparedUpdate> prepared,
                                const EngineCall& call, ParameterServer& owner) {
  std::atomic<bool> gone{false};
  Status unregistered;
  std::thread unregistering([&] {
    unregistered = owner.unregister_checkpoint("c");
    gone = true;
  });
  const auto report = reader.commit(
      std::move(prepared),
      [&](const std::vector<WorkerAddress>& all, EngineCallContext& context) -> Status {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(gone) << "freed in the middle of an update";
        return call(all, context);
      });
  unregistering.join();
  EXPECT_TRUE(report.is_ok()) << report.status().to_string();
  EXPECT_TRUE(unregistered.is_ok()) << unregistered.to_string();
}

std::string metas_of(Job& job) {
  const auto metas = job.server(0).export_metas();
  EXPECT_TRUE(metas.is_ok()) << metas.status().to_string();
  return metas.is_ok() ? *metas : std::string();
}

std::vector<Status> load_metas(Job& job, const std::string& metas) {
  return job.run([&](int, ParameterServer& server) { return server.load_metas(metas); });
}

/// Every recipient has a worker of its own engine.
std::vector<Status> update(Job& job, const std::string& name, std::vector<TestEngine>& engines,
                           UpdateOptions options = {}) {
  return job.update(name, job.call(engines), std::move(options));
}

std::vector<TestEngine> one_engine(int workers) {
  std::vector<TestEngine> engines;
  engines.emplace_back(workers);
  return engines;
}

void expect_whole(const std::vector<TestEngine>& engines, const Checkpoint& checkpoint) {
  for (const TestEngine& engine : engines) {
    for (const TestLoader& loader : engine.loaders) EXPECT_EQ(loader.difference(checkpoint), "");
  }
}

class FromAnotherJobOverCollective : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, FromAnotherJobOverCollective, ::testing::Values("auto", "peer"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_P(FromAnotherJobOverCollective, JobsOfEverySizeFillThemselves) {
  const Checkpoint checkpoint = small_model(5, 61);
  for (const int owners : {1, 3}) {
    Job running({.ranks = owners});
    ASSERT_TRUE(running.load("c", checkpoint).is_ok());
    for (const int targets : {1, 2, 4}) {
      Job fresh({.ranks = targets, .collective = GetParam()});
      expect_ok(load_metas(fresh, metas_of(running)));
      EXPECT_EQ(fresh.server(0).checkpoint_name(), "c");
      EXPECT_EQ(metas_of(fresh), metas_of(running)) << "as they were loaded";
      auto engines = one_engine(targets);
      expect_ok(update(fresh, "c", engines));
      expect_whole(engines, checkpoint);
      std::uint64_t received = 0;
      for (const UpdateReport& report : fresh.reports) received += report.received_bytes;
      EXPECT_LT(received, 2 * fresh.reports[0].total_bytes) << "it enters the host once";
    }
    auto engines = one_engine(owners);
    expect_ok(update(running, "c", engines));
    expect_whole(engines, checkpoint);
  }
}

TEST_P(FromAnotherJobOverCollective, SeveralHostsPassTheBytesOn) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2, .host_ids = {"a", "b"}});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 3, .host_ids = {"c", "c", "d"}, .collective = GetParam()});
  expect_ok(load_metas(fresh, metas_of(running)));
  for (int round = 0; round < 2; ++round) {
    auto engines = one_engine(3);
    expect_ok(update(fresh, "c", engines));
    expect_whole(engines, checkpoint);
  }
}

TEST_P(FromAnotherJobOverCollective, SomeOfItsRanks) {
  const Checkpoint checkpoint = small_model(3, 63);
  Job running({.ranks = 2});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 4, .host_ids = {"a", "a", "b", "b"}, .collective = GetParam()});
  expect_ok(load_metas(fresh, metas_of(running)));
  for (const std::vector<int>& recipients :
       {std::vector<int>{3}, std::vector<int>{2, 1}, std::vector<int>{0, 1, 2}}) {
    UpdateOptions options;
    options.recipients = recipients;
    auto engines = one_engine(static_cast<int>(recipients.size()));
    expect_ok(update(fresh, "c", engines, options));
    expect_whole(engines, checkpoint);
  }
}

TEST(FromAnotherJob, BothJobsUpdateAtOnce) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 2, .host_ids = {"x", "y"}});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto old_engines = one_engine(2), new_engines = one_engine(2);
  std::vector<Status> own;
  std::thread other([&] { own = update(running, "c", old_engines); });
  const auto statuses = update(fresh, "c", new_engines);
  other.join();
  expect_ok(statuses);
  expect_ok(own);
  expect_whole(old_engines, checkpoint);
  expect_whole(new_engines, checkpoint);
}

TEST(FromAnotherJob, AJobThatHasEndedIsRefusedByName) {
  std::string metas;
  {
    Job running({.ranks = 2});
    ASSERT_TRUE(running.load("c", small_model(2, 65)).is_ok());
    metas = metas_of(running);
  }
  Job fresh({.ranks = 2});
  expect_ok(load_metas(fresh, metas));
  auto engines = one_engine(2);
  const auto refused = update(fresh, "c", engines);
  expect_refused(refused, "of the loaded metas");
  // Its host says so at once: the time for owners that say nothing is a deadline exceeded.
  EXPECT_EQ(refused[0].code(), StatusCode::kPeerLost);
  EXPECT_TRUE(engines[0].loaders[0].memory.empty()) << "no engine was touched";

  // The next one works, from a job that lives.
  const Checkpoint checkpoint = small_model(2, 66);
  Job other({.ranks = 1});
  ASSERT_TRUE(other.load("c", checkpoint).is_ok());
  expect_ok(load_metas(fresh, metas_of(other)));
  expect_ok(update(fresh, "c", engines));
  expect_whole(engines, checkpoint);
}

std::string metas_of_both(Job& one, Job& other) {
  return concat("[", metas_of(one), ",", metas_of(other), "]");
}

TEST(FromSeveralJobs, TheyShareTheWork) {
  const Checkpoint checkpoint = large_model();
  Job one({.ranks = 1}), other({.ranks = 2});
  ASSERT_TRUE(one.load("c", checkpoint).is_ok());
  ASSERT_TRUE(other.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 2, .host_ids = {"x", "y"}});
  expect_ok(load_metas(fresh, metas_of_both(one, other)));
  auto engines = one_engine(2);
  expect_ok(update(fresh, "c", engines));
  expect_whole(engines, checkpoint);
  // What was loaded can be handed on.
  Job next({.ranks = 1});
  expect_ok(load_metas(next, metas_of(fresh)));
  auto others = one_engine(1);
  expect_ok(update(next, "c", others));
  expect_whole(others, checkpoint);
}

TEST(FromSeveralJobs, OneStandsInForAnotherThatGoesInTheMiddle) {
  const Checkpoint checkpoint = large_model();
  const auto impatient = [](ParameterServerOptions& options) {
    options.reader_patience_seconds = 0.01;
  };
  Job one({.ranks = 1});
  auto other = std::make_unique<Job>(JobOptions{.ranks = 2, .adjust = impatient});
  ASSERT_TRUE(one.load("c", checkpoint).is_ok());
  ASSERT_TRUE(other->load("c", checkpoint).is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of_both(one, *other)));
  auto engines = one_engine(1);
  auto prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  other.reset();
  const auto report = fresh.server(0).commit(std::move(*prepared), fresh.call(engines));
  ASSERT_TRUE(report.is_ok()) << report.status().to_string();
  expect_whole(engines, checkpoint);
  // And for the next one, where it is known from the start.
  auto others = one_engine(1);
  expect_ok(update(fresh, "c", others));
  expect_whole(others, checkpoint);
}

TEST(FromSeveralJobs, ThatHoldSomethingElseAreRefused) {
  Job one({.ranks = 1}), other({.ranks = 1});
  ASSERT_TRUE(one.load("c", small_model(1, 1)).is_ok());
  ASSERT_TRUE(other.load("c", small_model(1, 2)).is_ok());
  Job fresh({.ranks = 1});
  for (const Status& status : load_metas(fresh, metas_of_both(one, other))) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
  }
}

// Its own job's barrier does not wait for an owner that does not call.
TEST(WithinOneJob, AnOwnerThatTakesNoPartWaitsForItsReaders) {
  const Checkpoint checkpoint = large_model();
  Job job({.ranks = 2, .host_ids = {"a", "b"}});
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  UpdateOptions options;
  options.recipients = {1};
  options.all_ranks_call = false;
  auto engines = one_engine(1);
  auto prepared = job.server(1).prepare("c", options);
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  commit_while_unregistering(job.server(1), std::move(*prepared), job.call(engines), job.server(0));
  expect_whole(engines, checkpoint);
}

TEST(WithinOneJob, AWrongRdmaFilterIsAnErrorOfP2POnly) {
  const Checkpoint checkpoint = small_model(2, 78);
  ::setenv("PS_P2P_STORE_RDMA_DEVICES", "mlx5_77", 1);
  Job job({.ranks = 2, .host_ids = {"a", "b"}});
  ::unsetenv("PS_P2P_STORE_RDMA_DEVICES");
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  auto engines = one_engine(2);
  expect_ok(update(job, "c", engines));
  expect_whole(engines, checkpoint);
  UpdateOptions options;
  options.recipients = {1};
  auto others = one_engine(1);
  expect_refused(update(job, "c", others, options), "mlx5_77");
  EXPECT_TRUE(others[0].loaders[0].memory.empty()) << "no engine was touched";
  expect_ok(update(job, "c", engines));
}

TEST(FromAnotherJob, MetasOfAnEarlierRegistrationAreRefused) {
  const Checkpoint before = small_model(2, 67), after = small_model(2, 68);
  Job running({.ranks = 2});
  ASSERT_TRUE(running.load("c", before).is_ok());
  const std::string metas = metas_of(running);
  expect_ok(
      running.run([](int, ParameterServer& server) { return server.unregister_checkpoint("c"); }));
  ASSERT_TRUE(running.load("c", after).is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas));
  auto engines = one_engine(1);
  expect_refused(update(fresh, "c", engines), "no longer registered");
  expect_ok(load_metas(fresh, metas_of(running)));
  expect_ok(update(fresh, "c", engines));
  expect_whole(engines, after);
}

TEST(FromAnotherJob, RanksThatLoadedDifferentMetasAreTold) {
  Job one({.ranks = 1}), other({.ranks = 1});
  ASSERT_TRUE(one.load("c", small_model(1, 1)).is_ok());
  ASSERT_TRUE(other.load("c", small_model(1, 2)).is_ok());
  Job fresh({.ranks = 2});
  expect_ok(fresh.run([&](int rank, ParameterServer& server) {
    return server.load_metas(metas_of(rank == 0 ? one : other));
  }));
  auto engines = one_engine(2);
  expect_refused(update(fresh, "c", engines), "different metas");
  for (const Status& status : update(fresh, "d", engines)) {
    EXPECT_THAT(status.message(), HasSubstr("load_metas"));
  }
}

TEST(FromAnotherJob, ReplicasFillInForAnOwnerThatIsGone) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2});
  expect_ok(running.run([&](int, ParameterServer& server) -> Status {
    Registration all;
    for (const auto& [name, tensor] : checkpoint) {
      all.tensors.push_back({tensor.info, tensor.bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", all));
    return server.gather_metas("c");
  }));
  Job fresh({.ranks = 2, .host_ids = {"x", "y"}});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto engines = one_engine(2);
  expect_ok(update(fresh, "c", engines));
  ASSERT_TRUE(running.server(0).unregister_checkpoint("c").is_ok());
  auto others = one_engine(2);
  expect_ok(update(fresh, "c", others));
  expect_whole(others, checkpoint);
  ASSERT_TRUE(running.server(1).unregister_checkpoint("c").is_ok());
  expect_refused(update(fresh, "c", others), "nobody is left to read tensor");
}

TEST(FromAnotherJob, AReplicaFillsInForAnOwnerThatGoesInTheMiddle) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2, .adjust = [](ParameterServerOptions& options) {
                 options.reader_patience_seconds = 0.01;
               }});
  expect_ok(running.run([&](int, ParameterServer& server) -> Status {
    Registration all;
    for (const auto& [name, tensor] : checkpoint) {
      all.tensors.push_back({tensor.info, tensor.bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", all));
    return server.gather_metas("c");
  }));
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto engines = one_engine(1);
  auto prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  ASSERT_TRUE(running.server(1).unregister_checkpoint("c").is_ok());
  auto report = fresh.server(0).commit(std::move(*prepared), fresh.call(engines));
  ASSERT_TRUE(report.is_ok()) << report.status().to_string();
  expect_whole(engines, checkpoint);
  // The next one plans without it, and has nobody to fill in.
  auto others = one_engine(1);
  prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  ASSERT_TRUE(running.server(0).unregister_checkpoint("c").is_ok());
  report = fresh.server(0).commit(std::move(*prepared), fresh.call(others));
  ASSERT_FALSE(report.is_ok());
  EXPECT_THAT(report.status().message(), HasSubstr("rank 0"));
}

/// Engines of one process. Owners can be made to die behind so many looks at their door.
class DoorCounters {
 public:
  class Engine final : public TransferEngine {
   public:
    Engine(DoorCounters& all, std::string address) : all_(all), address_(std::move(address)) {}
    ~Engine() override { set_message_handler({}); }
    std::string address() const override { return address_; }
    Status register_memory(void*, std::uint64_t) override { return Status::ok(); }
    void deregister_memory(void*) override {}
    Status read(const std::string& address, std::span<const Piece> pieces, double,
                const std::function<bool()>&) override {
      const bool door = pieces.size() == 1 && pieces[0].bytes == sizeof(std::uint64_t);
      if (!all_.answers(address, door)) return peer_lost("nobody answers");
      for (const Piece& piece : pieces) {
        std::memcpy(piece.destination, reinterpret_cast<const void*>(piece.remote_address),
                    piece.bytes);
      }
      return Status::ok();
    }
    Status send(const std::string& address, std::span<const std::byte> message) override {
      const std::lock_guard lock(all_.mutex_);
      const auto at = all_.handlers_.find(address);
      if (at != all_.handlers_.end()) at->second(message);
      return Status::ok();
    }
    void set_message_handler(MessageHandler handler) override {
      const std::lock_guard lock(all_.mutex_);
      if (handler) {
        all_.handlers_[address_] = std::move(handler);
      } else {
        all_.handlers_.erase(address_);
      }
    }

   private:
    DoorCounters& all_;
    const std::string address_;
  };

  void die_behind(const std::string& address, int looks) {
    const std::lock_guard lock(mutex_);
    looks_left_[address] = looks;
  }

 private:
  bool answers(const std::string& address, bool door) {
    const std::lock_guard lock(mutex_);
    const auto at = looks_left_.find(address);
    if (at == looks_left_.end()) return true;
    if (door) return at->second-- > 0;
    return at->second > 0;
  }

  std::mutex mutex_;
  std::map<std::string, TransferEngine::MessageHandler> handlers_;  // guarded by mutex_
  std::map<std::string, int> looks_left_;                           // the same
};

// A recipient looks at a door three times: it asks, sees how much there is, and takes its lease.
TEST(FromAnotherJob, AReplicaFillsInForAnOwnerThatGoesBetweenTheQuestionAndTheLease) {
  const Checkpoint checkpoint = small_model(3, 77);
  DoorCounters network;
  const auto with_engine = [&](const char* job) {
    return [&network, job](ParameterServerOptions& options) {
      options.transfer_engine =
          std::make_shared<DoorCounters::Engine>(network, concat(job, options.rank.value_or(0)));
    };
  };
  Job running({.ranks = 2, .adjust = with_engine("owner")});
  expect_ok(running.run([&](int, ParameterServer& server) -> Status {
    Registration all;
    for (const auto& [name, tensor] : checkpoint) {
      all.tensors.push_back({tensor.info, tensor.bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", all));
    return server.gather_metas("c");
  }));
  Job fresh({.ranks = 1, .adjust = with_engine("reader")});
  expect_ok(load_metas(fresh, metas_of(running)));
  for (const int looks : {0, 1, 2}) {
    network.die_behind("owner1", looks);
    auto engines = one_engine(1);
    expect_ok(update(fresh, "c", engines));
    expect_whole(engines, checkpoint);
  }
  network.die_behind("owner0", 1);
  auto engines = one_engine(1);
  expect_refused(update(fresh, "c", engines), "rank 0");
}

TEST(FromAnotherJob, ASecondRegistrationInTheMiddleDisturbsNoReader) {
  const Checkpoint checkpoint = large_model(), other = small_model(3, 77);
  Job running({.ranks = 2});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto engines = one_engine(1);
  auto prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  ASSERT_TRUE(running.load("d", other).is_ok());
  const auto report = fresh.server(0).commit(std::move(*prepared), fresh.call(engines));
  ASSERT_TRUE(report.is_ok()) << report.status().to_string();
  expect_whole(engines, checkpoint);
  // Both can be read now, each by its own metas.
  expect_ok(update(fresh, "c", engines));
  expect_ok(load_metas(fresh, metas_of(running)));
  auto second = one_engine(1);
  expect_ok(update(fresh, "d", second));
  expect_whole(second, other);
}

TEST(FromAnotherJob, AnOwnerWaitsForItsReaders) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto engines = one_engine(1);
  auto prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  commit_while_unregistering(fresh.server(0), std::move(*prepared), fresh.call(engines),
                             running.server(0));
  expect_whole(engines, checkpoint);
  expect_refused(update(fresh, "c", engines), "rank 0");
}

TEST(FromAnotherJob, AnOwnerThatDoesNotWaitEndsTheUpdateCleanly) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 1, .adjust = [](ParameterServerOptions& options) {
                 options.reader_patience_seconds = 0.01;
               }});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(running)));
  auto engines = one_engine(1);
  auto prepared = fresh.server(0).prepare("c", {});
  ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
  ASSERT_TRUE(running.server(0).unregister_checkpoint("c").is_ok());
  const auto report = fresh.server(0).commit(std::move(*prepared), fresh.call(engines));
  ASSERT_FALSE(report.is_ok());
  EXPECT_THAT(report.status().message(), HasSubstr("no longer registered"));
  EXPECT_THAT(report.status().message(), HasSubstr("rank 0"));
  EXPECT_EQ(engines[0].loaders[0].finished, 0);
  // A registration that takes its place is no hindrance, and is read by its own metas.
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  expect_ok(load_metas(fresh, metas_of(running)));
  expect_ok(update(fresh, "c", engines));
  expect_whole(engines, checkpoint);
}

TEST(FromAnotherJob, AJobThatEndsInTheMiddleIsNamed) {
  auto running =
      std::make_unique<Job>(JobOptions{.ranks = 1, .adjust = [](ParameterServerOptions& options) {
                                         options.reader_patience_seconds = 0.01;
                                       }});
  ASSERT_TRUE(running->load("c", large_model()).is_ok());
  Job fresh({.ranks = 2, .host_ids = {"x", "y"}});
  expect_ok(load_metas(fresh, metas_of(*running)));
  auto engines = one_engine(2);
  std::vector<std::unique_ptr<PreparedUpdate>> prepared(2);
  expect_ok(fresh.run([&](int rank, ParameterServer& server) -> Status {
    CKPT_ASSIGN_OR_RETURN(prepared[static_cast<std::size_t>(rank)],
                          server.prepare("c", {.instance_size = 2}));
    return Status();
  }));
  running.reset();
  const auto call = fresh.call(engines);
  expect_refused(fresh.run([&](int rank, ParameterServer& server) {
    return server.commit(std::move(prepared[static_cast<std::size_t>(rank)]), call).status();
  }),
                 "rank 0");
}

std::vector<Status> offer_loaded(Job& job) {
  return job.run([](int, ParameterServer& server) { return server.offer_loaded(); });
}

TEST(FanOut, JobsFollowEachOtherWhileTheyAreFilled) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job first({.ranks = 2, .host_ids = {"x", "y"}});
  Job second({.ranks = 1, .collective = "peer"});
  Job third({.ranks = 3});
  const std::vector<Job*> jobs = {&first, &second, &third};
  Job* before = &running;
  for (Job* job : jobs) {
    expect_ok(load_metas(*job, metas_of(*before)));
    expect_ok(offer_loaded(*job));
    EXPECT_NE(metas_of(*job), metas_of(*before));
    before = job;
  }
  std::vector<std::vector<TestEngine>> engines;
  for (const Job* job : jobs) engines.push_back(one_engine(job->ranks()));
  // The last one first: it waits for those before it.
  std::vector<std::vector<Status>> outcomes(jobs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = jobs.size(); i-- > 0;) {
    threads.emplace_back([&, i] { outcomes[i] = update(*jobs[i], "c", engines[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    expect_ok(outcomes[i]);
    expect_whole(engines[i], checkpoint);
  }
  // What was kept is whole: nobody needs the first owners any more.
  expect_ok(
      running.run([](int, ParameterServer& server) { return server.unregister_checkpoint("c"); }));
  Job late({.ranks = 1});
  expect_ok(load_metas(late, metas_of(second)));
  auto late_engines = one_engine(1);
  expect_ok(update(late, "c", late_engines));
  expect_whole(late_engines, checkpoint);
  // And when it is given up, it is refused.
  ASSERT_TRUE(second.server(0).unregister_checkpoint("c").is_ok());
  expect_refused(update(late, "c", late_engines), "no longer registered");
}

TEST(FanOut, AJobThatStopsHalfWayEndsThoseThatFollowIt) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  auto first = std::make_unique<Job>(JobOptions{.ranks = 1});
  expect_ok(load_metas(*first, metas_of(running)));
  expect_ok(offer_loaded(*first));
  Job second({.ranks = 1});
  expect_ok(load_metas(second, metas_of(*first)));
  auto engines = one_engine(1), following = one_engine(1);
  engines[0].loaders[0].refuse_tensor = "model.layers.29.mlp.down_proj.weight";
  expect_refused(update(*first, "c", engines), "model.layers.29.mlp.down_proj.weight");
  std::vector<Status> outcome;
  std::atomic<bool> began{false};
  std::thread follower([&] {
    began = true;
    outcome = update(second, "c", following);
  });
  while (!began) std::this_thread::yield();
  first.reset();
  follower.join();
  expect_refused(outcome, "rank 0");
  // The one before it can be tried again.
  expect_ok(load_metas(second, metas_of(running)));
  expect_ok(update(second, "c", following));
  expect_whole(following, checkpoint);
}

TEST(FanOut, OnlyWhatWasLoadedCanBeOffered) {
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", small_model(1, 1)).is_ok());
  EXPECT_THAT(running.server(0).offer_loaded().message(), HasSubstr("load_metas"));
}

TEST(FromAnotherJob, DamagedMemoryIsFoundByItsDigest) {
  const std::string path = concat("/dev/shm/ckpt-integrity-", random_id(), ".bin");
  const OwnedTensor tensor = random_tensor("model.layers.0.weight", 3 << 20, 5);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tensor.bytes.data()), 3 << 20);
  UniqueFd file(::open(path.c_str(), O_RDWR));
  ASSERT_TRUE(file);
  Job running({.ranks = 1});
  ASSERT_TRUE(
      running.server(0)
          .register_checkpoint("c", {.files = {{tensor.info, path, 0}},
                                     .shared_memory_files = SharedMemoryFiles::kUseAndRemove})
          .is_ok());
  ASSERT_TRUE(running.server(0).gather_metas("c").is_ok());
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(running)));
  const char wrong = static_cast<char>(tensor.bytes[1234567] ^ std::byte{0x10});
  ASSERT_EQ(::pwrite(file.get(), &wrong, 1, 1234567), 1);
  auto engines = one_engine(1);
  expect_refused(update(fresh, "c", engines), "model.layers.0.weight");
}

TEST(FromAnotherJob, ChangedMetasAreRefused) {
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", small_model(1, 1)).is_ok());
  std::string metas = metas_of(running);
  Job fresh({.ranks = 1});
  const std::size_t at = metas.find("model.norm.weight");
  ASSERT_NE(at, metas.npos);
  metas[at] = 'M';
  EXPECT_THAT(fresh.server(0).load_metas(metas).message(), HasSubstr("\"hash\""));
  EXPECT_FALSE(fresh.server(0).load_metas("{}").is_ok());
}

}  // namespace
}  // namespace ckpt::testing
