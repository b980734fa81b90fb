#include "transport/callback/read_permits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "base/strings.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;

Deadline soon() { return Deadline::after_seconds(30); }

TEST(PermitMessage, SurvivesTheWayAndNothingElseIsOne) {
  const PermitMessage message{PermitMessage::Kind::kAsk, 1ull << 63, 7, "instance", "a b 12"};
  const std::vector<std::byte> bytes = encode_permit_message(message);
  EXPECT_EQ(decode_permit_message(bytes), message);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(decode_permit_message(std::span(bytes).first(i)).has_value()) << i;
  }
  for (std::size_t i = 0; i < 8; ++i) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_FALSE(decode_permit_message(damaged).has_value()) << i;
  }
}

/// An owner "o" and a reader "r" whose messages can be lost.
class Permits : public ::testing::Test {
 protected:
  Permits()
      : owner_(
            {"at o", [this](const std::string&, auto m) { return deliver("o", reader_, m); },
             [](const std::string&) { return false; }, [](const std::string&) { return Status(); }},
            "o"),
        reader_({"at r", [this](const std::string&, auto m) { return deliver("r", owner_, m); },
                 [this](const std::string&) { return is_abandoned(); },
                 [this](const std::string&) { return dead_ ? peer_lost("nobody") : Status(); }},
                "r") {
    owner_.open(1);
  }
  ~Permits() override {
    const std::lock_guard lock(delivering_);
    cut_ = true;
  }

  // The two are joined before both are made, but nothing is sent so early.
  Status deliver(std::string_view from, ReadPermits& to, std::span<const std::byte> message) {
    const std::lock_guard lock(delivering_);
    if (!cut_) {
      EXPECT_TRUE(to.hear({from, from}, message));
    }
    return Status();
  }
  bool is_abandoned() {
    if (!asked_for_the_first_.exchange(false)) return abandoned_;
    EXPECT_TRUE(end(false).is_ok());
    second_given_up_.set_value();
    return false;
  }
  Status begin(std::uint64_t region = 1, Deadline deadline = soon()) {
    return reader_.begin(who_, region, deadline, never_);
  }
  Status end(bool whole = true) { return reader_.end(who_, 1, whole, soon(), never_); }
  /// Returns when the owner takes no new readers any more.
  std::future<void> start_to_close(Deadline deadline) {
    auto closing = std::async(std::launch::async, [this, deadline] { owner_.close(1, deadline); });
    while (begin().is_ok()) {
      EXPECT_TRUE(end().is_ok());
      std::this_thread::yield();
    }
    return closing;
  }
  static bool is_over(const std::future<void>& future) {
    return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::mutex delivering_;
  std::atomic<bool> cut_{false}, dead_{false}, abandoned_{false};
  /// The next question whether a read goes on that was given up is answered with no, and while it
  /// is, another read is given up.
  std::atomic<bool> asked_for_the_first_{false};
  std::promise<void> second_given_up_;
  AbortSignal never_;
  ReadPermits owner_, reader_;
  const ReadPermits::Owner who_{"at o", "o", "rank 3"};
};

TEST_F(Permits, ARegionIsReadUntilItCloses) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(begin().is_ok());
    EXPECT_TRUE(end().is_ok());
  }
  owner_.close(1, soon());
  for (const std::uint64_t region : {1, 2}) {
    const Status status = begin(region);
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  }
  owner_.close(1, soon());
}

TEST_F(Permits, ClosingWaitsForReadsUnderWay) {
  ASSERT_TRUE(begin().is_ok());
  auto closing = start_to_close(soon());
  // Longer than a permit lives: it is renewed meanwhile.
  std::this_thread::sleep_for(kPermitTime + kPermitTime / 4);
  EXPECT_FALSE(is_over(closing));
  EXPECT_TRUE(end().is_ok()) << "what was read is what the region held";
  closing.get();
}

TEST_F(Permits, ClosingWaitsForReadsThatWereGivenUpAndGoOn) {
  ASSERT_TRUE(begin().is_ok());
  abandoned_ = true;
  EXPECT_TRUE(end(false).is_ok());
  auto closing = start_to_close(soon());
  std::this_thread::sleep_for(kPermitTime / 4);
  EXPECT_FALSE(is_over(closing));
  abandoned_ = false;
  closing.get();
}

TEST_F(Permits, ThatOneReadHasEndedSaysNothingOfTheNext) {
  ASSERT_TRUE(begin().is_ok());
  ASSERT_TRUE(begin().is_ok());
  abandoned_ = true;
  EXPECT_TRUE(end(false).is_ok());
  asked_for_the_first_ = true;
  second_given_up_.get_future().wait();
  auto closing = start_to_close(soon());
  std::this_thread::sleep_for(kPermitTime / 4);
  EXPECT_FALSE(is_over(closing));
  abandoned_ = false;
  closing.get();
}

TEST_F(Permits, AReaderThatDoesNotEndIsWaitedForUntilTheDeadlineAndGetsNothing) {
  ASSERT_TRUE(begin().is_ok());
  start_to_close(Deadline::after_seconds(0.1)).get();
  EXPECT_EQ(end().code(), StatusCode::kNotFound);
}

TEST_F(Permits, AReaderThatFallsSilentIsForgottenAndGetsNothing) {
  ASSERT_TRUE(begin().is_ok());
  cut_ = true;
  owner_.close(1, soon());
  cut_ = false;
  EXPECT_EQ(end().code(), StatusCode::kNotFound);
}

TEST_F(Permits, WhatWasReadOverASilenceIsGoodWhenTheRegionIsStillOpen) {
  ASSERT_TRUE(begin().is_ok());
  cut_ = true;
  std::this_thread::sleep_for(kPermitTime + kPermitTime / 4);
  cut_ = false;
  EXPECT_TRUE(end().is_ok());
}

TEST_F(Permits, AnotherInstanceIsNotRead) {
  const ReadPermits::Owner before{"at o", "before", "rank 3"};
  const Status status = reader_.begin(before, 1, soon(), never_);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
}

TEST_F(Permits, AnOwnerThatIsDeadOrSilentIsNamed) {
  cut_ = true;
  Status status = begin(1, Deadline::after_seconds(0.4));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
  dead_ = true;
  status = begin();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 3"));
}

TEST_F(Permits, AReaderThatEndsGivesItsPermitsBack) {
  std::atomic<int> returned{0};
  ReadPermits::Engine engine{"at r",
                             [&](const std::string&, std::span<const std::byte> message) {
                               const auto sent = decode_permit_message(message);
                               if (sent->kind == PermitMessage::Kind::kReturn) ++returned;
                               return deliver("r", owner_, message);
                             },
                             [](const std::string&) { return false; },
                             [](const std::string&) { return Status(); }};
  {
    // Answers go to the fixture's reader, which does not know the permit: nothing is granted here.
    ReadPermits ending(engine, "r");
    EXPECT_EQ(ending.begin(who_, 1, Deadline::after_seconds(0.1), never_).code(),
              StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(returned.load(), 1);
  owner_.close(1, Deadline::after_seconds(0));
}

TEST_F(Permits, AnAbortEndsTheWait) {
  cut_ = true;
  AbortSignal abort;
  auto waiting =
      std::async(std::launch::async, [&] { return reader_.begin(who_, 1, soon(), abort); });
  abort.raise(aborted("rank 5 gave up"));
  EXPECT_EQ(waiting.get().message(), "rank 5 gave up");
}

}  // namespace
}  // namespace ckpt
