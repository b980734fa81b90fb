// The one thread that drives the UCX workers of a transport. Everything else of this folder runs on
// it; other threads post to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/status.h"
#include "transport/ucx/worker.h"

namespace ckpt::ucx {

class Progress {
 public:
  using Task = std::function<void()>;
  using TimerKey = std::pair<Deadline::Clock::time_point, std::uint64_t>;

  static Result<std::unique_ptr<Progress>> create(std::shared_ptr<Context> context);
  /// Starts the thread, on which the handlers run: on_message deferred, the
  /// others inside UCX. Once,
  /// before anything below.
  void start(WorkerHandlers handlers);
  /// As stop().
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Any thread: runs `task` on the progress thread; false, and the task is dropped, when stopped.
  bool post(Task task);
  /// As post, and waits for its end. At once when called on the progress thread.
  bool run(const Task& task);
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// Ends the thread when all posted tasks have run and all endpoints are gone, or 2 s later. Not
  /// on the progress thread. Idempotent.
  void stop();
  /// Where peers reach the main worker. Any thread.
  const std::vector<std::byte>& address() const { return address_; }

  // Progress thread only.
  /// The worker at address(): it serves.
  const std::shared_ptr<Worker>& main_worker() const { return main_; }
  /// One more, for one connection. Driven until its last owner lets go of it, which must not be
  /// inside UCX.
  Result<std::shared_ptr<Worker>> add_worker();
  /// Must be called after anything was asked of a worker.
  void activate(const std::shared_ptr<Worker>& worker);
  /// Runs `task` when UCX has returned: its callbacks must not call back into it.
  void defer(Task task) { deferred_.push_back(std::move(task)); }
  TimerKey call_at(Deadline when, Task task);
  void cancel(TimerKey key) { timers_.erase(key); }
  /// Endpoints that exist or are being cut. UCX wants them gone before their worker.
  void count_endpoint(int change) { endpoints_ += change; }

 private:
  explicit Progress(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  void loop();
  bool run_ready();
  bool run_deferred();
  bool drive_workers();
  void sleep();
  bool stopped() const { return stop_by_ && (endpoints_ == 0 || stop_by_->expired()); }

  const std::shared_ptr<Context> context_;
  WorkerHandlers handlers_;      // the transport's
  WorkerHandlers own_handlers_;  // what workers call
  std::vector<std::byte> address_;
  UniqueFd epoll_;

  EventFd wake_;
  std::mutex mutex_;
  std::vector<Task> posted_;  // guarded by mutex_
  bool stopping_ = false;     // guarded by mutex_
  std::atomic<bool> has_posted_{false};

  // Of the progress thread.
  struct Driven {
    std::weak_ptr<Worker> worker;
    bool active = false;
  };
  std::shared_ptr<Worker> main_;
  std::map<int, Driven> workers_;  // by fd; the idle ones are armed and watched by epoll_
  std::vector<int> active_;        // fds
  std::vector<Task> deferred_;
  std::map<TimerKey, Task> timers_;
  std::uint64_t next_timer_ = 0;
  int endpoints_ = 0;
  int fruitless_ = 0;  // sleeps since there was work
  std::optional<Deadline> stop_by_;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace ckpt::ucx
