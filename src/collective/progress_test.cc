#include "collective/progress.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/strings.h"

namespace ckpt {
namespace {

TEST(Progress, NumbersOnlyGrowAndWakeWaiters) {
  auto progress = Progress::create_private(3);
  ASSERT_TRUE(progress.is_ok());
  AbortSignal abort;
  EXPECT_EQ(progress->value(2), 0u);
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 1000; ++i) progress->publish(1, i);
  });
  for (const std::uint64_t target : {1, 500, 1000}) {
    EXPECT_TRUE(progress->wait(1, target, Deadline::after_seconds(10), abort).is_ok());
    EXPECT_GE(progress->value(1), target);
  }
  writer.join();
  progress->publish(1, 7);
  EXPECT_EQ(progress->value(1), 1000u) << "a smaller number changes nothing";
  EXPECT_EQ(progress->value(0), 0u);
}

TEST(Progress, WaitsEndAtTheDeadlineAndWithTheCauseOfAnAbort) {
  auto progress = Progress::create_private(1);
  AbortSignal abort;
  const Status late = progress->wait(0, 1, Deadline::after_seconds(0.02), abort);
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  std::thread raiser([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    abort.raise(peer_lost("rank 3 is gone"));
  });
  const Status status = progress->wait(0, 1, Deadline::after_seconds(30), abort);
  EXPECT_EQ(status.message(), "rank 3 is gone");
  raiser.join();
}

TEST(Progress, IsSharedBetweenProcesses) {
  const std::string name = concat("ckpt-progress-test-", ::getpid());
  auto mine = Progress::create_shared(name, 2);
  ASSERT_TRUE(mine.is_ok()) << mine.status().to_string();
  const pid_t child = ::fork();
  if (child == 0) {
    auto theirs = Progress::open_shared(name, 2);
    AbortSignal abort;
    if (!theirs.is_ok()) ::_exit(1);
    theirs->publish(0, 5);
    ::_exit(theirs->wait(1, 6, Deadline::after_seconds(20), abort).is_ok() ? 0 : 2);
  }
  AbortSignal abort;
  EXPECT_TRUE(mine->wait(0, 5, Deadline::after_seconds(20), abort).is_ok());
  mine->publish(1, 6);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Progress::open_shared(name, 3).status().code(), StatusCode::kInternal);
  mine->close_to_others();
  EXPECT_EQ(Progress::open_shared(name, 2).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace ckpt
