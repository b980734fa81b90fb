#include "http/operation_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ckpt {
namespace {

using Kind = OperationQueue::Kind;
using testing::HasSubstr;

Deadline never() { return Deadline::after_seconds(1e9); }

/// A turn that the test ends.
std::unique_ptr<OperationQueue::Turn> begin(OperationQueue& queue, Kind kind,
                                            const std::string& what) {
  auto turn = queue.begin(kind, what, never());
  EXPECT_TRUE(turn.is_ok()) << turn.status().message();
  return std::make_unique<OperationQueue::Turn>(std::move(*turn));
}

TEST(OperationQueue, OneAfterTheOther) {
  OperationQueue queue(4);
  auto first = begin(queue, Kind::kQueued, "first");
  EXPECT_EQ(queue.running(), "first");
  std::atomic<bool> ran{false};
  std::thread second([&] {
    const auto turn = queue.begin(Kind::kQueued, "second", never());
    EXPECT_TRUE(turn.is_ok());
    EXPECT_EQ(queue.running(), "second");
    ran = true;
  });
  while (queue.waiting() == 0) std::this_thread::yield();
  EXPECT_FALSE(ran);
  first.reset();
  second.join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(queue.running(), "");
}

TEST(OperationQueue, ASecondUpdateIsRefusedAndAnotherOperationWaits) {
  OperationQueue queue(4);
  auto update = begin(queue, Kind::kAtOnce, "update a");
  const Status refused = queue.begin(Kind::kAtOnce, "update b", never()).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("update a"));
  update.reset();
  EXPECT_TRUE(queue.begin(Kind::kAtOnce, "update b", never()).is_ok());
  EXPECT_TRUE(queue.begin(Kind::kAtOnce, "update c", never()).is_ok()) << "its turn has ended";
}

TEST(OperationQueue, WaitsForSoManyOnlyAndForNobodyOnceClosed) {
  OperationQueue queue(3);
  auto running = begin(queue, Kind::kQueued, "running");
  std::vector<std::thread> waiting;
  std::atomic<int> closed{0};
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back([&] {
      const auto turn = queue.begin(Kind::kQueued, "waiting", never());
      if (turn.status().code() == StatusCode::kUnavailable) ++closed;
    });
  }
  while (queue.waiting() < 2) std::this_thread::yield();
  const Status refused = queue.begin(Kind::kQueued, "one too many", never()).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("busy with running"));
  queue.close();
  for (auto& thread : waiting) thread.join();
  EXPECT_EQ(closed, 2) << "while the first one still runs";
}

TEST(OperationQueue, NobodyWaitsLongerThanItsTime) {
  OperationQueue queue(3);
  auto running = begin(queue, Kind::kQueued, "running");
  const Status late = queue.begin(Kind::kAtOnce, "update", Deadline::after_seconds(0.05)).status();
  EXPECT_EQ(late.code(), StatusCode::kUnavailable);
  EXPECT_THAT(late.message(), HasSubstr("busy with running for all the time"));
  EXPECT_EQ(queue.waiting(), 0);
  std::thread next([&] { EXPECT_TRUE(queue.begin(Kind::kAtOnce, "update", never()).is_ok()); });
  while (queue.waiting() == 0) std::this_thread::yield();
  running.reset();
  next.join();
}

}  // namespace
}  // namespace ckpt
