#include "http/operation_queue.h"

#include "base/strings.h"

namespace ckpt {

Result<OperationQueue::Turn> OperationQueue::begin(Kind kind, const std::string& what) {
  std::unique_lock lock(mutex_);
  if (closed_) return unavailable("the service is stopping");
  if (kind == Kind::kAtOnce && at_once_ > 0) {
    return failed_precondition(
        concat("an update is under way or waiting already (now ", running_, "); wait for its end"));
  }
  if (next_ticket_ - serving_ >= static_cast<std::uint64_t>(limit_)) {
    return unavailable(
        concat("busy with ", running_, ", and ", limit_ - 1, " more calls wait; come again later"));
  }
  if (kind == Kind::kAtOnce) ++at_once_;
  const std::uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return serving_ == ticket; });
  Turn turn(*this, kind);
  if (closed_) {
    lock.unlock();  // the turn's end takes it
    return unavailable("the service is stopping");
  }
  running_ = what;
  return turn;
}

void OperationQueue::end(Kind kind) {
  const std::lock_guard lock(mutex_);
  if (kind == Kind::kAtOnce) --at_once_;
  ++serving_;
  running_.clear();
  changed_.notify_all();
}

std::string OperationQueue::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

int OperationQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  const auto here = static_cast<int>(next_ticket_ - serving_);
  return here > 0 ? here - 1 : 0;
}

void OperationQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace ckpt
