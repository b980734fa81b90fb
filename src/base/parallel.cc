#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>

namespace ckpt {

struct ThreadPool::Loop {
  std::size_t count;
  const std::function<Status(std::size_t)>& body;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Status first_error;
};

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(Loop& loop) {
  while (!loop.failed.load(std::memory_order_relaxed)) {
    const std::size_t i = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop.count) return;
    if (Status status = loop.body(i); !status.is_ok()) {
      const std::lock_guard lock(loop.mutex);
      if (loop.first_error.is_ok()) loop.first_error = std::move(status);
      loop.failed.store(true, std::memory_order_relaxed);
    }
  }
}

void ThreadPool::work() {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || (loop_ != nullptr && generation_ != seen); });
    if (stop_) return;
    seen = generation_;
    Loop& loop = *loop_;
    ++busy_;
    lock.unlock();
    run(loop);
    lock.lock();
    if (--busy_ == 0) idle_.notify_all();
  }
}

Status ThreadPool::for_each(std::size_t count, const std::function<Status(std::size_t)>& body) {
  const std::lock_guard one_at_a_time(caller_mutex_);
  Loop loop{count, body};
  if (count > 1 && !workers_.empty()) {
    {
      const std::lock_guard lock(mutex_);
      loop_ = &loop;
      ++generation_;
    }
    wake_.notify_all();
  }
  run(loop);
  {
    std::unique_lock lock(mutex_);
    loop_ = nullptr;  // late wakers must not join any more
    idle_.wait(lock, [&] { return busy_ == 0; });
  }
  return loop.first_error;
}

int available_processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace ckpt
