#include "parameter_server/closing_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace ckpt {
namespace {

class ClosingMemoryTest : public testing::Test {
 protected:
  /// Memory that others have open until `open_` is false; `freed_` counts.
  void close(Deadline deadline = Deadline::after_seconds(60)) {
    std::shared_ptr<void> memory(new int, [this](void* at) {
      delete static_cast<int*>(at);
      ++freed_;
    });
    closing_->free_when_closed(
        "test memory", std::move(memory), [this] { return open_.load(); }, deadline);
  }
  void expect_wait() {
    const Status waited = closing_->wait(Deadline::after_seconds(60), never_);
    EXPECT_TRUE(waited.is_ok()) << waited.to_string();
  }

  std::atomic<bool> open_{true};
  std::atomic<int> freed_{0};
  AbortSignal never_;
  std::unique_ptr<ClosingMemory> closing_ = std::make_unique<ClosingMemory>();
};

TEST_F(ClosingMemoryTest, WhatNobodyHasOpenIsFreedAtOnce) {
  open_ = false;
  close();
  EXPECT_EQ(freed_, 1);
  EXPECT_TRUE(closing_->empty());
  expect_wait();
}

TEST_F(ClosingMemoryTest, IsFreedWhenTheOthersHaveClosedIt) {
  close();
  close();
  EXPECT_FALSE(closing_->empty());
  EXPECT_EQ(closing_->wait(Deadline::after_seconds(0.05), never_).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(freed_, 0);
  open_ = false;
  expect_wait();
  EXPECT_EQ(freed_, 2);
}

TEST_F(ClosingMemoryTest, IsFreedAtTheDeadlineAllTheSame) {
  close(Deadline::after_seconds(0.02));
  expect_wait();
  EXPECT_EQ(freed_, 1);
}

TEST_F(ClosingMemoryTest, AWaitIsAborted) {
  close();
  never_.raise(aborted("test"));
  EXPECT_EQ(closing_->wait(Deadline::after_seconds(60), never_).code(), StatusCode::kAborted);
  open_ = false;
}

TEST_F(ClosingMemoryTest, ItsEndWaitsForWhatIsThere) {
  close();
  auto end = std::async(std::launch::async, [this] { closing_.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(freed_, 0);
  open_ = false;
  end.get();
  EXPECT_EQ(freed_, 1);
}

TEST_F(ClosingMemoryTest, MemoryThatAnotherHoldsTooIsFreedByTheLast) {
  std::shared_ptr<int> memory = std::make_shared<int>(7);
  closing_->free_when_closed("test memory", memory, [this] { return open_.load(); });
  open_ = false;
  expect_wait();
  EXPECT_EQ(memory.use_count(), 1);
}

TEST_F(ClosingMemoryTest, IsUsedAgainAfterItWasEmpty) {
  for (int round = 1; round <= 3; ++round) {
    open_ = true;
    close();
    open_ = false;
    expect_wait();
    EXPECT_EQ(freed_, round);
  }
}

}  // namespace
}  // namespace ckpt
