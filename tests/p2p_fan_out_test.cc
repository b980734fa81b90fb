// Jobs that hand on what they are filled with (offer_loaded).
#include "support/p2p_jobs.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

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

TEST(FanOut, WhatIsOfferedIsCheckedAlsoWhereWorkersCheckNothing) {
  OwnerInAFile owner;
  Job middle({.ranks = 1});
  expect_ok(load_metas(middle, metas_of(owner.job)));
  expect_ok(offer_loaded(middle));
  owner.damage();
  UpdateOptions unchecked;
  unchecked.verify = false;
  auto engines = one_engine(1);
  expect_refused(update(middle, "c", engines, unchecked), "is kept for other jobs");
  owner.repair();
  expect_ok(update(middle, "c", engines, unchecked));
  Job last({.ranks = 1});
  expect_ok(load_metas(last, metas_of(middle)));
  auto following = one_engine(1);
  expect_ok(update(last, "c", following));
  expect_whole(following, {{owner.tensor.info.name, owner.tensor}});
}

TEST(FanOut, OnlyWhatWasLoadedCanBeOffered) {
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", small_model(1, 1)).is_ok());
  EXPECT_THAT(running.server(0).offer_loaded().message(), HasSubstr("load_metas"));
}

}  // namespace
}  // namespace ckpt::testing
