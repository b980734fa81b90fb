#include "http/operation_queue.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt {

Result<OperationQueue::Turn> OperationQueue::begin(Kind kind, const std::string& what,
                                                   Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (closed_) return unavailable("the service is stopping");
  if (kind == Kind::kAtOnce && at_once_ > 0) {
    return failed_precondition(
        concat("an update is under way or waiting already (now ", running_, "); wait for its end"));
  }
  if (order_.size() >= static_cast<std::size_t>(limit_)) {
    return unavailable(
        concat("busy with ", running_, ", and ", limit_ - 1, " more calls wait; come again later"));
  }
  const void* const ticket = &lock;  // unique while this call waits
  order_.push_back(ticket);
  if (kind == Kind::kAtOnce) ++at_once_;
  const bool came = changed_.wait_until(lock, deadline.when(),
                                        [&] { return closed_ || order_.front() == ticket; });
  if (closed_ || !came) {
    const Status why = closed_ ? unavailable("the service is stopping")
                               : unavailable(concat("busy with ", running_,
                                                    " for all the time that this "
                                                    "call has; come again later"));
    order_.erase(std::find(order_.begin(), order_.end(), ticket));
    if (kind == Kind::kAtOnce) --at_once_;
    changed_.notify_all();
    return why;
  }
  running_ = what;
  return Turn(*this, kind);
}

void OperationQueue::end(Kind kind) {
  const std::lock_guard lock(mutex_);
  if (kind == Kind::kAtOnce) --at_once_;
  order_.pop_front();
  running_.clear();
  changed_.notify_all();
}

std::string OperationQueue::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

int OperationQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return order_.empty() ? 0 : static_cast<int>(order_.size()) - 1;
}

void OperationQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace ckpt
