#include "collective/nccl/kept_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "collective/testing/fake_nccl.h"
#include "collective/testing/must.h"

namespace ckpt {
namespace {

using testing::fake_nccl;
using testing::FakeNccl;
using ::testing::HasSubstr;
using testing::must;

/// Two ranks, 3 and 5, as threads of the test.
class KeptCommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override { FakeNccl::wait_for_members(true); }
  void TearDown() override {
    three_.reset();
    five_.reset();
    EXPECT_EQ(FakeNccl::alive(), 0);
    EXPECT_EQ(FakeNccl::mistakes(), 0);
  }

  Status make(KeptCommunicator& mine, int rank, std::span<const std::byte> key,
              Deadline deadline = Deadline::after_seconds(30)) {
    return mine.make(key, members_, rank, *device_, deadline, *abort_);
  }
  /// Both ranks at once.
  void make_both() {
    const auto key = must(three_->make_key());
    std::thread other([&] { must(make(*five_, 5, key)); });
    must(make(*three_, 3, key));
    other.join();
  }
  Status send(KeptCommunicator& mine, std::byte* to, const std::byte* from = nullptr) {
    const NcclBroadcast one{from, to, 4, 0};
    return mine.get().broadcast(std::span(&one, 1), nullptr, Deadline::after_seconds(30), *abort_);
  }

  const std::vector<int> members_{3, 5};
  const std::shared_ptr<Device> device_ = make_host_device();
  std::unique_ptr<AbortSignal> abort_ = std::make_unique<AbortSignal>();
  std::unique_ptr<KeptCommunicator> three_ = std::make_unique<KeptCommunicator>(fake_nccl(), false);
  std::unique_ptr<KeptCommunicator> five_ = std::make_unique<KeptCommunicator>(fake_nccl(), false);
  std::byte source_[4] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  std::byte here_[4] = {}, there_[4] = {};
};

TEST_F(KeptCommunicatorTest, IsTheSameOnAllRanksAndKept) {
  EXPECT_EQ(three_->id(), 0u);
  EXPECT_FALSE(three_->connects(members_));
  EXPECT_GT(three_->bytes_to_come(), 1u << 29);
  make_both();
  EXPECT_EQ(three_->bytes_to_come(), 0u);
  EXPECT_NE(three_->id(), 0u);
  EXPECT_EQ(three_->id(), five_->id());
  EXPECT_TRUE(three_->connects(members_));
  EXPECT_FALSE(three_->connects({3}));
  three_->update_over(Deadline::after_seconds(30), *abort_);
  EXPECT_TRUE(three_->connects(members_));
}

TEST_F(KeptCommunicatorTest, BroadcastsFromTheRoot) {
  make_both();
  std::thread other([&] { must(send(*five_, there_)); });
  must(send(*three_, here_, source_));
  other.join();
  EXPECT_TRUE(std::ranges::equal(here_, source_));
  EXPECT_TRUE(std::ranges::equal(there_, source_));
}

TEST_F(KeptCommunicatorTest, AMemberThatDoesNotComeCostsTheDeadline) {
  const auto key = must(three_->make_key());
  const Status status = make(*three_, 3, key, Deadline::after_seconds(0.05));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_EQ(three_->id(), 0u);
}

TEST_F(KeptCommunicatorTest, AnAbortEndsTheWaitForMembers) {
  const auto key = must(three_->make_key());
  std::thread aborter([&] { abort_->raise(aborted("enough")); });
  EXPECT_EQ(make(*three_, 3, key).message(), "enough");
  aborter.join();
}

TEST_F(KeptCommunicatorTest, AnAbortEndsACallThatTheOthersDoNotMake) {
  make_both();
  std::thread aborter([&] { abort_->raise(aborted("enough")); });
  EXPECT_EQ(send(*three_, here_, source_).message(), "enough");
  aborter.join();
  three_->get().abort();
  EXPECT_EQ(three_->id(), 0u);
  EXPECT_EQ(send(*three_, here_, source_).code(), StatusCode::kFailedPrecondition);
  // The other rank still has its own; that they differ is what tells all to make a new one.
  EXPECT_NE(five_->id(), 0u);
  abort_ = std::make_unique<AbortSignal>();
  make_both();
  EXPECT_EQ(three_->id(), five_->id());
}

TEST_F(KeptCommunicatorTest, AnErrorThatNcclFindsLaterIsTheResult) {
  make_both();
  FakeNccl::fail_next_group(kNcclRemoteError);
  const Status status = send(*three_, here_, source_);
  EXPECT_EQ(status.code(), StatusCode::kPeerError) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("as the test wanted"));
}

TEST_F(KeptCommunicatorTest, IsFreedAfterEachUpdateWhereThatIsWanted) {
  three_ = std::make_unique<KeptCommunicator>(fake_nccl(), true);
  five_ = std::make_unique<KeptCommunicator>(fake_nccl(), true);
  make_both();
  std::thread other([&] { five_->update_over(Deadline::after_seconds(30), *abort_); });
  three_->update_over(Deadline::after_seconds(30), *abort_);
  other.join();
  EXPECT_EQ(three_->id(), 0u);
  EXPECT_EQ(FakeNccl::alive(), 0);
}

TEST_F(KeptCommunicatorTest, AnAbortEndsTheFreeingThatTheOthersDoNotJoin) {
  three_ = std::make_unique<KeptCommunicator>(fake_nccl(), true);
  make_both();
  std::thread aborter([&] { abort_->raise(peer_lost("rank 5 has gone")); });
  // Far beyond what a test may take: only the abort can end this.
  three_->update_over(Deadline::after_seconds(3600), *abort_);
  aborter.join();
  EXPECT_EQ(three_->id(), 0u);
  EXPECT_EQ(FakeNccl::alive(), 1);  // that of rank 5
}

TEST_F(KeptCommunicatorTest, AKeyOfTheWrongSizeIsRefused) {
  const std::byte key[3] = {};
  EXPECT_EQ(make(*three_, 3, key).code(), StatusCode::kProtocol);
}

}  // namespace
}  // namespace ckpt
