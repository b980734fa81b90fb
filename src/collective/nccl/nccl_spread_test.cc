#include "collective/nccl/nccl_spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "collective/testing/fake_nccl.h"
#include "collective/testing/must.h"
#include "plan/test_topology.h"

namespace ckpt {
namespace {

using testing::FakeNccl;
using ::testing::HasSubstr;
using testing::must;

/// A stream that never gets past anything.
class StuckStream final : public CopyStream {
 public:
  explicit StuckStream(std::atomic<int>& waiting) : waiting_(waiting) {}
  Status copy(std::byte*, const std::byte*, std::uint64_t) override { return Status(); }
  Status digest(const std::vector<DigestRequest>&, std::uint64_t*) override { return Status(); }
  Result<Ticket> mark() override { return Ticket{1}; }
  Result<bool> reached(Ticket) override { return false; }
  Status wait(Ticket, Deadline deadline, AbortSignal& abort) override {
    ++waiting_;
    while (!abort.raised() && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    --waiting_;
    return abort.raised() ? abort.cause() : deadline_exceeded("stuck");
  }

 private:
  std::atomic<int>& waiting_;
};

/// Two ranks of a host, everything filled and loaded, whose calls are queued and never complete.
class StuckNcclTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 2;
  struct Rank {
    Schedule schedule;
    std::vector<std::byte> ring;
    std::vector<std::byte> staging;
    std::unique_ptr<NcclCommunicator> communicator;
    std::unique_ptr<PullProgress> pulled;
    std::unique_ptr<NcclSpread> spread;
    Status status;
  };

  StuckNcclTest()
      : topology_(two_ranks()),
        plan_(must(topology_.plan())),
        layout_({0, 1}, {}),
        progress_(must(Progress::create_private(layout_.slots()))) {
    FakeNccl::wait_for_members(false);
    NcclUniqueId id{};
    const auto api = testing::fake_nccl();
    api->get_unique_id(&id);
    for (int i = 0; i < kRanks; ++i) {
      Rank& rank = ranks_[static_cast<std::size_t>(i)];
      rank.schedule = make_schedule(plan_, topology_.ranks, i);
      rank.ring.resize(plan_.options.ring_bytes);
      rank.staging.resize(rank.schedule.fill_slots * plan_.options.chunk_bytes);
      rank.communicator = must(NcclCommunicator::create(api, id, {0, 1}, i, *device_,
                                                        Deadline::after_seconds(30), abort_));
      rank.pulled = std::make_unique<PullProgress>(rank.schedule, progress_, layout_, i);
      rank.spread = std::make_unique<NcclSpread>(NcclContext{
          plan_, rank.schedule, progress_, layout_, *rank.pulled, i, rank.ring.data(),
          Staging{rank.staging.data(), plan_.options.chunk_bytes, rank.schedule.fill_slots},
          *rank.communicator, std::make_unique<StuckStream>(waiting_)});
      progress_.publish(layout_.stream(i, StreamKind::kFill), 1 << 20);
      progress_.publish(layout_.acknowledged(i), 1 << 20);
    }
  }
  ~StuckNcclTest() override { FakeNccl::fail_all(kNcclSuccess); }

  static testing::Topology two_ranks() {
    std::vector<std::vector<testing::TestTensor>> held(kRanks);
    for (int i = 0; i < kRanks; ++i)
      held[static_cast<std::size_t>(i)] = {{testing::name_in_group(i, 0), 512}};
    PlanOptions options;
    options.ring_bytes = 4096;
    options.bucket_bytes = 2048;
    options.chunk_bytes = 512;
    options.cross_chunk_bytes = 512;
    options.staging_chunks = 2;
    options.sharing = RingSharing::kPerRank;
    return {testing::make_catalog(held), testing::make_ranks(1, kRanks), options, ""};
  }

  /// Runs both; `then` when both wait for a call that is queued.
  template <typename Then>
  void run(Deadline deadline, Then then) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_)
      threads.emplace_back([&, deadline] { rank.status = rank.spread->run(deadline, abort_); });
    while (waiting_ < kRanks && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    then();
    for (std::thread& thread : threads) thread.join();
  }

  const std::shared_ptr<Device> device_ = make_host_device();
  AbortSignal abort_;
  std::atomic<int> waiting_{0};
  const testing::Topology topology_;
  const Plan plan_;
  const HostProgressLayout layout_;
  Progress progress_;
  std::array<Rank, kRanks> ranks_;
};

TEST_F(StuckNcclTest, AnErrorThatNcclFindsWhileACallIsUnderWayEndsIt) {
  // Far beyond what a test may take: only the error can end this.
  run(Deadline::after_seconds(3600), [] { FakeNccl::fail_all(kNcclRemoteError); });
  for (const Rank& rank : ranks_) {
    EXPECT_EQ(rank.status.code(), StatusCode::kPeerError) << rank.status.to_string();
    EXPECT_THAT(rank.status.message(), HasSubstr("as the test wanted"));
    EXPECT_FALSE(rank.communicator->usable());
  }
}

TEST_F(StuckNcclTest, AnAbortWhoseCauseIsADeadlineEndsIt) {
  run(Deadline::after_seconds(3600), [&] { abort_.raise(deadline_exceeded("rank 7 was late")); });
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.status.message(), "rank 7 was late");
}

TEST_F(StuckNcclTest, TheDeadlineEndsIt) {
  run(Deadline::after_seconds(0.2), [] {});
  for (const Rank& rank : ranks_) EXPECT_EQ(rank.status.code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ckpt
