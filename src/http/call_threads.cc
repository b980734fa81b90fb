#include "http/call_threads.h"

#include <utility>

namespace ckpt {

CallThreads::CallThreads(int threads, std::size_t most_waiting, Answer answer)
    : most_waiting_(most_waiting), answer_(std::move(answer)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

bool CallThreads::push(Connection& connection) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() >= most_waiting_) return false;
  waiting_.push_back(std::move(connection));
  changed_.notify_one();
  return true;
}

void CallThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

void CallThreads::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Connection connection = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    answer_(std::move(connection));
    lock.lock();
  }
}

}  // namespace ckpt
