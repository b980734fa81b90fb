#include "transport/read_outcome.h"

namespace ckpt {

bool ReadOutcome::finish(Status outcome) {
  const std::lock_guard lock(mutex_);
  if (outcome_) return false;
  outcome_ = std::move(outcome);
  changed_.notify_all();
  return true;
}

bool ReadOutcome::done() const {
  const std::lock_guard lock(mutex_);
  return outcome_.has_value();
}

std::optional<Status> ReadOutcome::wait_done(Deadline until) const {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until.when(), [&] { return outcome_.has_value(); });
  return outcome_;
}

bool ReadOutcome::released() const {
  const std::lock_guard lock(mutex_);
  return outcome_.has_value() && receiving_ == 0;
}

bool ReadOutcome::wait_released(Deadline until) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until.when(),
                             [&] { return outcome_.has_value() && receiving_ == 0; });
}

bool ReadOutcome::begin_receive() {
  const std::lock_guard lock(mutex_);
  if (outcome_) return false;
  ++receiving_;
  return true;
}

void ReadOutcome::end_receive(std::uint64_t arrived) {
  bytes_done_.fetch_add(arrived, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  --receiving_;
  changed_.notify_all();
}

Status ReadOutcome::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_.value_or(Status::ok());
}

}  // namespace ckpt
