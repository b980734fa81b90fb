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

/// A turn that the test ends.
std::unique_ptr<OperationQueue::Turn> begin(OperationQueue& queue, Kind kind,
                                            const std::string& what) {
  auto turn = queue.begin(kind, what);
  EXPECT_TRUE(turn.is_ok()) << turn.status().message();
  return std::make_unique<OperationQueue::Turn>(std::move(*turn));
}

TEST(OperationQueue, OneAfterTheOther) {
  OperationQueue queue(4);
  auto first = begin(queue, Kind::kQueued, "first");
  EXPECT_EQ(queue.running(), "first");
  std::atomic<bool> ran{false};
  std::thread second([&] {
    const auto turn = queue.begin(Kind::kQueued, "second");
    EXPECT_TRUE(turn.is_ok());
    EXPECT_EQ(queue.running(), "second");
    ran = true;
  });
  EXPECT_FALSE(ran);
  first.reset();
  second.join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(queue.running(), "");
}

TEST(OperationQueue, ASecondUpdateIsRefusedAndAnotherOperationWaits) {
  OperationQueue queue(4);
  auto update = begin(queue, Kind::kAtOnce, "update a");
  const Status refused = queue.begin(Kind::kAtOnce, "update b").status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("update a"));
  update.reset();
  EXPECT_TRUE(queue.begin(Kind::kAtOnce, "update b").is_ok());
  EXPECT_TRUE(queue.begin(Kind::kAtOnce, "update c").is_ok()) << "its turn has ended";
}

TEST(OperationQueue, WaitsForSoManyOnlyAndForNobodyOnceClosed) {
  OperationQueue queue(3);
  auto running = begin(queue, Kind::kQueued, "running");
  std::vector<std::thread> waiting;
  std::atomic<int> closed{0};
  for (int i = 0; i < 2; ++i) {
    waiting.emplace_back([&] {
      const auto turn = queue.begin(Kind::kQueued, "waiting");
      if (turn.status().code() == StatusCode::kUnavailable) ++closed;
    });
  }
  while (queue.waiting() < 2) std::this_thread::yield();
  const Status refused = queue.begin(Kind::kQueued, "one too many").status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("busy with running"));
  queue.close();
  running.reset();
  for (auto& thread : waiting) thread.join();
  EXPECT_EQ(closed, 2);
}

}  // namespace
}  // namespace ckpt
