// Updates with collective `nccl`, whose library is a stand-in that works on host memory: inside a
// host and over several, with communicators that are kept, released, and made anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "base/strings.h"
#include "collective/testing/fake_nccl.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

struct Way {
  const char* name;
  std::vector<std::string> hosts;  // of four ranks; empty: one host
  friend void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

  bool over_hosts() const { return !hosts.empty(); }
};

class NcclUpdateTest : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr int kRanks = 4;

  NcclUpdateTest() { FakeNccl::wait_for_members(true); }
  ~NcclUpdateTest() override {
    FakeNccl::watch_groups({});
    job_.reset();
    EXPECT_EQ(FakeNccl::mistakes(), 0);
    EXPECT_EQ(FakeNccl::alive(), 0);
  }

  void start(std::function<void(ParameterServerOptions&)> adjust = {}) {
    job_ = std::make_unique<Job>(JobOptions{.ranks = kRanks,
                                            .host_ids = GetParam().hosts,
                                            .collective = "nccl",
                                            .sizes = kSmallRing,
                                            .adjust = std::move(adjust)});
    ASSERT_TRUE(job_->load("c", checkpoint_).is_ok());
  }
  void expect_update(const UpdateOptions& options = {}) {
    std::vector<TestEngine> engines;
    engines.emplace_back(options.recipients.empty() ? kRanks
                                                    : static_cast<int>(options.recipients.size()));
    expect_update(engines, options);
  }
  void expect_update(std::vector<TestEngine>& engines, const UpdateOptions& options = {}) {
    for (const Status& status : job_->update("c", job_->call(engines), options)) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    for (const TestLoader& loader : engines[0].loaders) {
      EXPECT_EQ(loader.difference(checkpoint_), "");
    }
  }
  /// In prepare, which then makes a communicator.
  bool made_a_communicator() const {
    return std::ranges::any_of(job_->reports[0].stages, [](const StageReport& stage) {
      return stage.name == "communicator";
    });
  }

  const Checkpoint checkpoint_ = small_model(6, 307);
  std::unique_ptr<Job> job_;
};
INSTANTIATE_TEST_SUITE_P(, NcclUpdateTest,
                         ::testing::Values(Way{"OneHost", {}},
                                           Way{"TwoHosts", {"a", "a", "b", "b"}},
                                           Way{"UnequalHosts", {"a", "b", "b", "b"}},
                                           Way{"FourHosts", {"a", "b", "c", "d"}}),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(NcclUpdateTest, EveryByteArrivesByGroupCallsAndTheCommunicatorIsKept) {
  start();
  std::mutex mutex;
  std::set<int> members;
  FakeNccl::watch_groups([&](int member, std::size_t) {
    const std::lock_guard lock(mutex);
    members.insert(member);
  });
  expect_update();
  EXPECT_TRUE(made_a_communicator());
  EXPECT_EQ(members, (std::set<int>{0, 1, 2, 3}));
  for (const UpdateReport& report : job_->reports) {
    EXPECT_GT(report.buckets, 5u);
    EXPECT_EQ(report.received_bytes, 0u) << "nothing crosses by the transport";
    EXPECT_EQ(std::ranges::count(report.stages, "credits", &StageReport::name),
              GetParam().over_hosts());
  }
  expect_update();
  EXPECT_FALSE(made_a_communicator());
  EXPECT_EQ(FakeNccl::alive(), kRanks);
}

TEST_P(NcclUpdateTest, CommunicatorsAreReleasedWhereThatIsWanted) {
  start([](ParameterServerOptions& options) { options.release_communicators = true; });
  for (int i = 0; i < 2; ++i) {
    expect_update();
    EXPECT_TRUE(made_a_communicator());
    EXPECT_EQ(FakeNccl::alive(), 0);
  }
}

TEST_P(NcclUpdateTest, BuffersAreKept) {
  start([](ParameterServerOptions& options) { options.keep_buffers = true; });
  expect_update();
  expect_update();
  for (const UpdateReport& report : job_->reports) EXPECT_EQ(report.allocated_bytes, 0u);
}

TEST_P(NcclUpdateTest, ASlowWorkerHoldsUpGroupCallsAndNothingElse) {
  start();
  for (const std::size_t slow : {std::size_t{0}, std::size_t{3}}) {
    std::vector<TestEngine> engines;
    engines.emplace_back(kRanks);
    engines[0].loaders[slow].seconds_per_tensor = 0.002;
    expect_update(engines);
  }
}

// Where an owner is no recipient, hosts speak over the transport, and only inside one is there
// anybody to call.
TEST_P(NcclUpdateTest, SomeRanksAreUpdatedOutOfTheMemoryOfAll) {
  start();
  UpdateOptions options;
  options.recipients = {1, 2, 3};
  expect_update(options);
  expect_update();
}

TEST_P(NcclUpdateTest, AnErrorOfNcclIsEverybodysAndTheNextUpdateWorks) {
  start();
  expect_update();
  std::vector<TestEngine> engines;
  engines.emplace_back(kRanks);
  FakeNccl::fail_next_group(kNcclRemoteError);
  for (const Status& status : job_->update("c", job_->call(engines))) {
    EXPECT_FALSE(status.is_ok());
    EXPECT_THAT(status.message(), HasSubstr("as the test wanted"));
  }
  expect_update();
  EXPECT_TRUE(made_a_communicator()) << "the one before was aborted";
}

}  // namespace
}  // namespace ckpt::testing
