#include "base/abort_signal.h"

namespace ckpt {

bool AbortSignal::raise(Status cause) {
  const std::lock_guard running(running_);
  std::map<int, Callback> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (raised_.load(std::memory_order_relaxed)) return false;
    cause_ = cause;
    callbacks.swap(callbacks_);
    raised_.store(true, std::memory_order_release);
  }
  event_.set();
  for (const auto& [key, callback] : callbacks) callback(cause);
  return true;
}

Status AbortSignal::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

int AbortSignal::subscribe(Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!raised_.load(std::memory_order_relaxed)) {
      callbacks_.emplace(next_key_, std::move(callback));
      return next_key_++;
    }
  }
  callback(cause());
  return -1;
}

void AbortSignal::unsubscribe(int key) {
  const std::lock_guard running(running_);
  const std::lock_guard lock(mutex_);
  callbacks_.erase(key);
}

}  // namespace ckpt
