#include "worker/closer.h"

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// The closers of this process. Never destroyed: their threads may outlive main.
class Closers {
 public:
  static Closers& instance() {
    static auto* closers = new Closers;
    return *closers;
  }

  void start(ClosingChannel channel) {
    const std::lock_guard lock(mutex_);
    join_finished();
    Running& running = running_.emplace_back();
    running.job = channel.job;
    running.rank = channel.rank;
    running.holds_ring = channel.ring != nullptr;
    running.thread = std::thread([this, &running, owned = std::move(channel)]() mutable {
      drive(std::move(owned), running);
      const std::lock_guard done(mutex_);
      running.finished = true;
      changed_.notify_all();
    });
  }

  template <typename Matches>
  bool wait(Deadline deadline, AbortSignal* abort, Matches matches) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline.when(),
                        [&] { return (abort != nullptr && abort->raised()) || !any(matches); });
    const bool all_gone = !any(matches);
    join_finished();
    return all_gone;
  }

  void notify() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  struct Running {
    std::string job;
    int rank = 0;
    bool holds_ring = false;
    bool finished = false;
    std::thread thread;
  };

 private:
  template <typename Matches>
  bool any(Matches matches) const {
    for (const Running& running : running_) {
      if (!running.finished && matches(running)) return true;
    }
    return false;
  }

  void join_finished() {
    for (auto it = running_.begin(); it != running_.end();) {
      if (!it->finished) {
        ++it;
        continue;
      }
      it->thread.join();
      it = running_.erase(it);
    }
  }

  void drop_ring(ClosingChannel& channel, Running& running) {
    if (channel.ring == nullptr) return;
    channel.ring.reset();
    const std::lock_guard lock(mutex_);
    running.holds_ring = false;
    changed_.notify_all();
  }

  void drive(ClosingChannel channel, Running& running);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Running> running_;
};

WorkerWire::AbortProgress step(ClosingChannel& channel) {
  WorkerWire::AbortProgress all;
  for (const auto& wire : channel.wires) {
    const auto one = wire->abort_step();
    all.connected |= one.connected;
    all.stopped |= one.stopped;
    all.served |= one.served;
  }
  return all;
}

// What a wire does by the clock needs no descriptor of its own.
constexpr std::chrono::seconds kLongestWait{1};

void wait_for_news(const ClosingChannel& channel, Deadline until) {
  until = until.earlier(Deadline::after(kLongestWait));
  std::vector<pollfd> entries;
  for (const auto& wire : channel.wires) entries.push_back({wire->poll_fd(), POLLIN, 0});
  ::poll(entries.data(), entries.size(), until.poll_ms());
}

void Closers::drive(ClosingChannel channel, Running& running) {
  Deadline idle = Deadline::after_seconds(channel.late_worker_seconds);
  bool cut = false;
  bool overstays = false;  // with a ring that must not be freed under it
  bool was_connected = false;
  while (true) {
    const auto progress = step(channel);
    if (progress.connected && !was_connected)
      idle = Deadline::after_seconds(channel.late_worker_seconds);
    was_connected = progress.connected;
    if (!progress.connected && !progress.stopped) {
      drop_ring(channel, running);
      if (progress.served || idle.expired()) return;
    } else if (cut && !progress.stopped && idle.expired()) {
      return;  // it is busy; the exception lies in its socket
    } else if (channel.ring_on_gpu && channel.ring != nullptr) {
      if (channel.deadline.expired() && !std::exchange(overstays, true)) {
        log_warning("the worker of rank ", channel.rank,
                    " has not left the aborted update in time: the ring in GPU memory stays until "
                    "it does");
      }
    } else if (!cut && channel.deadline.expired()) {
      log_warning("the worker of rank ", channel.rank,
                  " has not left the aborted update in time: its connection is cut");
      for (const auto& wire : channel.wires) wire->cut();
      cut = true;
      idle = Deadline::after_seconds(channel.late_worker_seconds);  // to come back
      was_connected = false;
      drop_ring(channel, running);
      continue;
    }
    wait_for_news(channel, overstays                    ? Deadline::after(kLongestWait)
                           : progress.connected && !cut ? channel.deadline
                           : progress.stopped           ? Deadline::after(kLongestWait)
                                                        : idle);
  }
}

}  // namespace

void hand_to_closer(ClosingChannel channel) { Closers::instance().start(std::move(channel)); }

Status wait_for_rings(std::string_view job, int rank, Deadline deadline, AbortSignal& abort) {
  Closers& closers = Closers::instance();
  const int key = abort.subscribe([&](const Status&) { closers.notify(); });
  const bool gone = closers.wait(deadline, &abort, [&](const Closers::Running& running) {
    return running.holds_ring && running.rank == rank && running.job == job;
  });
  abort.unsubscribe(key);
  if (gone) return Status::ok();
  if (abort.raised()) return abort.cause();
  return deadline_exceeded(concat("the worker of rank ", rank,
                                  " still reads the ring of an update that was aborted, or is "
                                  "stopped; wait for its engine, or restart it"));
}

Status wait_for_closers(std::string_view job, Deadline deadline) {
  int rank = 0;
  const bool gone = Closers::instance().wait(deadline, nullptr, [&](const auto& running) {
    rank = running.rank;
    return job.empty() || running.job == job;
  });
  if (gone) return Status::ok();
  return deadline_exceeded(concat("the worker of rank ", rank,
                                  " has not left an aborted update yet: it is stopped, or still "
                                  "busy with what it was given; look at its engine's log, or "
                                  "restart that"));
}

}  // namespace ckpt
