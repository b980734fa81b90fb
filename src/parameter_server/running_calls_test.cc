#include "parameter_server/running_calls.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>

namespace ckpt {
namespace {

class RunningCallsTest : public ::testing::Test {
 protected:
  /// A call on a thread of its own that waits for its turn; its outcome. `signal` ends it alone.
  std::future<Status> queued(std::shared_ptr<AbortSignal> signal = nullptr) {
    std::promise<void> began;
    auto begun = began.get_future();
    auto outcome =
        std::async(std::launch::async, [this, signal, began = std::move(began)]() mutable {
          std::optional<RunningCalls::EndedBy> ended;
          if (signal) ended.emplace(signal);
          RunningCalls::Call call(calls_);
          began.set_value();
          const Status status = call.wait_for_turn();
          if (status.is_ok()) log_ += "second ";
          return status;
        });
    begun.wait();
    return outcome;
  }

  RunningCalls calls_;
  std::string log_;  // of whoever has the turn
};

TEST_F(RunningCallsTest, OneHasTheTurn) {
  std::optional<RunningCalls::Call> first(std::in_place, calls_);
  ASSERT_TRUE(first->wait_for_turn().is_ok());
  auto second = queued();
  log_ += "first ";
  first.reset();
  EXPECT_TRUE(second.get().is_ok());
  EXPECT_EQ(log_, "first second ");
}

TEST_F(RunningCallsTest, OneThatWaitsIsEndedAlone) {
  RunningCalls::Call first(calls_);
  ASSERT_TRUE(first.wait_for_turn().is_ok());
  const auto signal = std::make_shared<AbortSignal>();
  auto second = queued(signal);
  signal->raise(aborted("interrupted"));
  EXPECT_EQ(second.get().message(), "interrupted");
  EXPECT_FALSE(first.signal()->raised());
  EXPECT_EQ(log_, "");
}

TEST_F(RunningCallsTest, TheTurnGoesOnToThoseThatWereNotEnded) {
  std::optional<RunningCalls::Call> first(std::in_place, calls_);
  ASSERT_TRUE(first->wait_for_turn().is_ok());
  const auto signal = std::make_shared<AbortSignal>();
  auto second = queued(signal);
  auto third = queued();
  signal->raise(aborted("interrupted"));
  EXPECT_FALSE(second.get().is_ok());
  first.reset();
  EXPECT_TRUE(third.get().is_ok());
}

TEST_F(RunningCallsTest, CancelEndsThoseThatRunAndThoseThatWait) {
  RunningCalls::Call first(calls_);
  ASSERT_TRUE(first.wait_for_turn().is_ok());
  auto second = queued();
  calls_.cancel(aborted("enough"));
  EXPECT_EQ(second.get().message(), "enough");
  EXPECT_EQ(first.signal()->cause().message(), "enough");
}

TEST_F(RunningCallsTest, OneThatWasEndedBeforeItBeganGetsNoTurn) {
  const auto signal = std::make_shared<AbortSignal>();
  signal->raise(aborted("interrupted"));
  {
    const RunningCalls::EndedBy ended(signal);
    RunningCalls::Call call(calls_);
    EXPECT_EQ(call.wait_for_turn().message(), "interrupted");
  }
  RunningCalls::Call next(calls_);
  EXPECT_TRUE(next.wait_for_turn().is_ok());
}

TEST_F(RunningCallsTest, WhatHasToBeDoneWaitsForItsTurnAndIsNotEnded) {
  std::optional<RunningCalls::Call> first(std::in_place, calls_);
  ASSERT_TRUE(first->wait_for_turn().is_ok());
  auto done = std::async(std::launch::async, [this] {
    const RunningCalls::Turn turn(calls_);
    log_ += "done ";
  });
  calls_.cancel(aborted("enough"));
  log_ += "first ";
  first.reset();
  done.get();
  EXPECT_EQ(log_, "first done ");
}

}  // namespace
}  // namespace ckpt
