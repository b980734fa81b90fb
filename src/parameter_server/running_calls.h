// The calls of a server that are under way, so that another thread can end them.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "base/abort_signal.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

class RunningCalls {
 public:
  /// A call, for as long as this exists; one thread's own.
  class Call {
   public:
    explicit Call(RunningCalls& calls) : calls_(calls) {
      const std::lock_guard lock(calls_.mutex_);
      calls_.signals_.push_back(signal_);
    }
    ~Call() {
      signal_->unsubscribe(subscription_);
      const std::lock_guard lock(calls_.mutex_);
      std::erase(calls_.signals_, signal_);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// Raised when the call is cancelled.
    AbortSignal* signal() { return signal_.get(); }
    /// Replaces the callback before; not run any more once the call is over.
    void on_cancel(AbortSignal::Callback callback) {
      signal_->unsubscribe(subscription_);
      subscription_ = signal_->subscribe(std::move(callback));
    }

   private:
    RunningCalls& calls_;
    const std::shared_ptr<AbortSignal> signal_ = std::make_shared<AbortSignal>();
    int subscription_ = -1;
  };

  /// Ends the calls that are under way now, with `cause`. From any thread.
  void cancel(const Status& cause) {
    std::vector<std::shared_ptr<AbortSignal>> signals;
    {
      const std::lock_guard lock(mutex_);
      signals = signals_;
    }
    for (const auto& signal : signals) signal->raise(cause);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<AbortSignal>> signals_;
};

}  // namespace ckpt
