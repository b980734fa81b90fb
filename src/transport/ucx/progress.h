// The UCX worker and the one thread that drives it. Everything else of this folder runs on that
// thread; other threads post to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/status.h"
#include "transport/ucx/context.h"
#include "transport/ucx/message.h"

struct ucp_worker;

namespace ckpt::ucx {

/// Data that has arrived and not been received yet. Valid inside the handler only.
class Arrival {
 public:
  using Done = std::function<void(const Status&)>;

  Arrival(ucp_worker* worker, const DataHeader& header, void* data, std::uint64_t bytes,
          bool rendezvous)
      : header_(header), worker_(worker), data_(data), bytes_(bytes), rendezvous_(rendezvous) {}

  const DataHeader& header() const { return header_; }
  std::uint64_t bytes() const { return bytes_; }
  /// The bytes, when they are here already; else receive() fetches them.
  bool is_here() const { return !rendezvous_; }
  std::span<const std::byte> here() const { return {static_cast<const std::byte*>(data_), bytes_}; }
  /// Lets UCX write to `destination` until `done` is called, later, on the progress thread.
  void receive(void* destination, Done done);
  bool received() const { return received_; }

 private:
  const DataHeader header_;
  ucp_worker* worker_;
  void* data_;
  const std::uint64_t bytes_;
  const bool rendezvous_;
  bool received_ = false;
};

class Progress {
 public:
  using Task = std::function<void()>;
  using MessageHandler = std::function<void(Message)>;
  using DataHandler = std::function<void(Arrival&)>;
  using TimerKey = std::pair<Deadline::Clock::time_point, std::uint64_t>;

  static Result<std::unique_ptr<Progress>> create(std::shared_ptr<Context> context);
  /// Starts the thread, on which the handlers run. Once, before anything below.
  void start(MessageHandler on_message, DataHandler on_data);
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

  // Progress thread only.
  ucp_worker* worker() const { return worker_; }
  /// Runs `task` when UCX has returned: its callbacks must not call back into it.
  void defer(Task task) { deferred_.push_back(std::move(task)); }
  TimerKey call_at(Deadline when, Task task);
  void cancel(TimerKey key) { timers_.erase(key); }
  /// Endpoints that exist or are being cut. UCX wants them gone before its worker.
  int endpoints() const { return endpoints_; }
  void count_endpoint(int change) { endpoints_ += change; }

  /// Where peers reach this worker.
  const std::vector<std::byte>& address() const { return address_; }

 private:
  Progress() = default;
  Status create_worker();
  Status set_handlers();
  void loop();
  bool run_ready();
  bool stopped() const { return stop_by_ && (endpoints_ == 0 || stop_by_->expired()); }
  int poll_timeout_ms() const;

  std::shared_ptr<Context> context_;
  MessageHandler on_message_;
  DataHandler on_data_;
  ucp_worker* worker_ = nullptr;
  int worker_fd_ = -1;
  std::vector<std::byte> address_;

  EventFd wake_;
  std::mutex mutex_;
  std::vector<Task> posted_;  // guarded by mutex_
  bool stopping_ = false;     // guarded by mutex_
  std::atomic<bool> has_posted_{false};

  // Of the progress thread.
  std::vector<Task> deferred_;
  std::map<TimerKey, Task> timers_;
  std::uint64_t next_timer_ = 0;
  int endpoints_ = 0;
  std::optional<Deadline> stop_by_;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace ckpt::ucx
