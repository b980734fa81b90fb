// Owners that go, or want their memory back, while another job reads it.
#include "support/p2p_jobs.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

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

TEST(FromAnotherJob, ReplicasFillInForAnOwnerThatIsGone) {
  const Checkpoint checkpoint = large_model();
  Job running({.ranks = 2});
  register_replicas(running, checkpoint);
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
  register_replicas(running, checkpoint);
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

}  // namespace
}  // namespace ckpt::testing
