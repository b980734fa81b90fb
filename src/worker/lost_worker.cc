#include "worker/lost_worker.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "worker/process_watch.h"
#include "worker/wait.h"

namespace ckpt {

bool closed_by_peer(const UniqueFd& connection) {
  pollfd entry{connection.get(), 0, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

LostWorker::LostWorker(std::int64_t pid, UniqueFd connection, double seconds_to_return)
    : pid_(pid), connection_(std::move(connection)), seconds_to_return_(seconds_to_return) {
  // Of the sending side only: with both, our own end would look like the worker's.
  ::shutdown(connection_.get(), SHUT_WR);
  if (auto process = watch_process(pid)) {
    process_ = *std::move(process);
  } else if (process.status().code() == StatusCode::kNotFound) {
    returns_ = Deadline::after_seconds(0);
  }
  // Without either there is no news to wait for.
  if (!connection_ && !process_ && !returns_) returns_ = Deadline::after_seconds(seconds_to_return);
}

bool LostWorker::may_go_on() {
  if (process_ && readable_now(process_.get())) return false;
  if (!returns_ && closed_by_peer(connection_)) {
    returns_ = Deadline::after_seconds(seconds_to_return_);
  }
  return !returns_ || !returns_->expired();
}

}  // namespace ckpt
