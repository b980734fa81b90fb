// Updates out of another job's memory: metas of a job that runs are loaded by one that owns
// nothing.
#include <cstdlib>

#include "support/p2p_jobs.h"

namespace ckpt::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(FromSeveralJobs, ThatHoldSomethingElseAreRefused) {
  Job one({.ranks = 1}), other({.ranks = 1});
  ASSERT_TRUE(one.load("c", small_model(1, 1)).is_ok());
  ASSERT_TRUE(other.load("c", small_model(1, 2)).is_ok());
  Job fresh({.ranks = 1});
  for (const Status& status : load_metas(fresh, metas_of_both(one, other))) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.to_string();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("of the loaded metas; file 1"),
                                        HasSubstr("of the loaded metas; file 2")));
  }
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
}

TEST(FromAnotherJob, ItMayBeCalledByAnyName) {
  const Checkpoint checkpoint = small_model(2, 65);
  Job running({.ranks = 1});
  ASSERT_TRUE(running.load("c", checkpoint).is_ok());
  Job fresh({.ranks = 2});
  expect_ok(fresh.run([](int, ParameterServer& server) { return server.gather_metas("mine"); }));
  auto engines = one_engine(2);
  expect_refused(update(fresh, "c", engines), "load_metas");
  expect_ok(load_metas(fresh, metas_of(running)));
  expect_ok(update(fresh, "mine", engines));
  expect_whole(engines, checkpoint);
  EXPECT_EQ(fresh.reports[0].checkpoint_name, "c");
  // While it is updated it is known by its own name.
  auto prepared = fresh.run([](int, ParameterServer& server) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto update, server.prepare("mine", {}));
    return server.unregister_checkpoint("c");
  });
  for (const Status& status : prepared) EXPECT_THAT(status.message(), HasSubstr("being updated"));
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

TEST(FromAnotherJob, DamagedMemoryIsFoundByItsDigest) {
  OwnerInAFile owner;
  Job fresh({.ranks = 1});
  expect_ok(load_metas(fresh, metas_of(owner.job)));
  owner.damage();
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

}  // namespace
}  // namespace ckpt::testing
