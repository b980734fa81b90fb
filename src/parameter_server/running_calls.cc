#include "parameter_server/running_calls.h"

#include <algorithm>
#include <utility>

namespace ckpt {
namespace {

thread_local std::shared_ptr<AbortSignal> ended_by;

}  // namespace

RunningCalls::Call::Call(RunningCalls& calls)
    : calls_(calls), signal_(ended_by ? ended_by : std::make_shared<AbortSignal>()) {
  const std::lock_guard lock(calls_.mutex_);
  calls_.signals_.push_back(signal_);
}

RunningCalls::Call::~Call() {
  signal_->unsubscribe(subscription_);
  if (has_turn_) calls_.end_turn();
  const std::lock_guard lock(calls_.mutex_);
  calls_.signals_.erase(std::ranges::find(calls_.signals_, signal_));
}

Status RunningCalls::Call::wait_for_turn() {
  const int waking = signal_->subscribe([this](const Status&) {
    const std::lock_guard lock(calls_.mutex_);
    calls_.turn_changed_.notify_all();
  });
  {
    std::unique_lock lock(calls_.mutex_);
    calls_.turn_changed_.wait(lock, [&] { return signal_->raised() || !calls_.turn_taken_; });
    if (!signal_->raised()) has_turn_ = calls_.turn_taken_ = true;
  }
  signal_->unsubscribe(waking);
  return has_turn_ ? Status() : signal_->cause();
}

void RunningCalls::Call::on_cancel(AbortSignal::Callback callback) {
  signal_->unsubscribe(subscription_);
  subscription_ = signal_->subscribe(std::move(callback));
}

RunningCalls::Turn::Turn(RunningCalls& calls) : calls_(calls) {
  std::unique_lock lock(calls_.mutex_);
  calls_.turn_changed_.wait(lock, [&] { return !calls_.turn_taken_; });
  calls_.turn_taken_ = true;
}

RunningCalls::EndedBy::EndedBy(std::shared_ptr<AbortSignal> signal) {
  ended_by = std::move(signal);
}

RunningCalls::EndedBy::~EndedBy() { ended_by.reset(); }

void RunningCalls::cancel(const Status& cause) {
  std::vector<std::shared_ptr<AbortSignal>> signals;
  {
    const std::lock_guard lock(mutex_);
    signals = signals_;
  }
  for (const auto& signal : signals) signal->raise(cause);
}

void RunningCalls::end_turn() {
  // Under the lock: whoever takes the turn may be the last to use this object.
  const std::lock_guard lock(mutex_);
  turn_taken_ = false;
  turn_changed_.notify_all();
}

}  // namespace ckpt
