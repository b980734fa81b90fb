// Work spread over a few threads that live as long as the pool.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// Runs loops on `threads` threads, the caller's included. One loop at a time; calls from several
/// threads queue up.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// Calls `body(i)` for every i below `count`, in any order; returns when all have returned. After
  /// the first error no further index is started, and that error is the result.
  Status for_each(std::size_t count, const std::function<Status(std::size_t)>& body);

 private:
  struct Loop;
  void work();
  static void run(Loop& loop);

  std::mutex caller_mutex_;  // one loop at a time
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Loop* loop_ = nullptr;
  std::size_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

/// Processors this process may run on (its affinity mask).
int available_processors();

}  // namespace ckpt
