#include "transport/ucx/progress.h"

#include <gtest/gtest.h>

#include <ctime>
#include <future>
#include <thread>
#include <vector>

#include "transport/ucx/ucx_transport.h"

namespace ckpt::ucx {
namespace {

std::unique_ptr<Progress> started_progress() {
  auto context = Context::create(UcxOptions{});
  if (!context.is_ok()) return nullptr;
  auto progress = Progress::create(std::move(context).value());
  if (!progress.is_ok()) return nullptr;
  (*progress)->start({[](Message) {}, [](const Hello&) { return Status::ok(); }, [](Arrival&) {}});
  return std::move(progress).value();
}

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

TEST(Progress, SleepsWhenThereIsNothingToDo) {
  const auto progress = started_progress();
  ASSERT_NE(progress, nullptr);
  for (int round = 0; round < 30; ++round) {
    // The second task meets the thread awake: it may run before its wake-up is there.
    for (int i = 0; i < 2 + round % 4; ++i) progress->post([] {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    // Of the processor, not of the clock: a busy machine only makes it less.
    ASSERT_LT(cpu_seconds() - before, 5e-3) << "in round " << round;
  }
}

TEST(Progress, RunsWhatSeveralThreadsPostAtOnce) {
  const auto progress = started_progress();
  ASSERT_NE(progress, nullptr);
  constexpr int kThreads = 4, kTasks = 2000;
  int ran = 0;  // of the progress thread
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      // Each waits for its own: a wake-up that is lost is a hang.
      for (int task = 0; task < kTasks; ++task) progress->run([&] { ++ran; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kTasks);
}

TEST(Progress, TimersAndDeferredTasksWakeIt) {
  const auto progress = started_progress();
  ASSERT_NE(progress, nullptr);
  std::promise<void> done;
  progress->post([&] {
    progress->call_at(Deadline::after(std::chrono::milliseconds(5)),
                      [&] { progress->defer([&] { done.set_value(); }); });
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(Progress, TakesNothingAfterItsEnd) {
  const auto progress = started_progress();
  ASSERT_NE(progress, nullptr);
  progress->stop();
  EXPECT_FALSE(progress->post([] {}));
  EXPECT_FALSE(progress->run([] {}));
  progress->stop();
}

}  // namespace
}  // namespace ckpt::ucx
