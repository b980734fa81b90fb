#include "transport/ucx/progress.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>

namespace ckpt::ucx {
namespace {

/// How long stop() waits for connections that are being closed.
constexpr std::chrono::seconds kStopPatience{2};
/// A worker's descriptor may stay readable although there is nothing to do: UCX's TCP waits for
/// room in a socket that has room until its peer has answered the connection. After so many rounds
/// without work the thread looks at such workers in steps, lest it takes the processor that the
/// peer needs.
constexpr int kFruitlessRounds = 100;
constexpr std::chrono::milliseconds kFruitlessStep{1};

}  // namespace

Result<std::unique_ptr<Progress>> Progress::create(std::shared_ptr<Context> context) {
  std::unique_ptr<Progress> progress(new Progress(std::move(context)));
  progress->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!progress->epoll_) return errno_error("cannot make an epoll set", errno);
  epoll_event wake{};
  wake.events = EPOLLIN;
  wake.data.fd = progress->wake_.fd();
  ::epoll_ctl(progress->epoll_.get(), EPOLL_CTL_ADD, progress->wake_.fd(), &wake);
  CKPT_ASSIGN_OR_RETURN(progress->main_, progress->add_worker());
  progress->address_ = progress->main_->address();
  return progress;
}

void Progress::start(WorkerHandlers handlers) {
  handlers_ = std::move(handlers);
  own_handlers_.on_message = [this](Message message) {
    defer([this, message = std::move(message)] { handlers_.on_message(message); });
  };
  own_handlers_.check_hello = handlers_.check_hello;
  own_handlers_.on_data = handlers_.on_data;
  thread_ = std::thread([this] { loop(); });
}

Progress::~Progress() {
  stop();
  // What was never run may own endpoints; they go before their workers.
  timers_.clear();
  deferred_.clear();
}

Result<std::shared_ptr<Worker>> Progress::add_worker() {
  CKPT_ASSIGN_OR_RETURN(auto made, Worker::create(context_, own_handlers_));
  std::shared_ptr<Worker> worker = std::move(made);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = worker->fd();
  // A number that was used before leaves the set with its worker.
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, worker->fd(), &event) != 0) {
    return errno_error("cannot watch a ucx worker", errno);
  }
  workers_[worker->fd()] = {worker, false};
  activate(worker);
  return worker;
}

void Progress::activate(const std::shared_ptr<Worker>& worker) {
  Driven& driven = workers_[worker->fd()];
  if (driven.active) return;
  driven.active = true;
  active_.push_back(worker->fd());
}

bool Progress::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    posted_.push_back(std::move(task));
    if (has_posted_.exchange(true, std::memory_order_acq_rel)) return true;
  }
  wake_.set();
  return true;
}

bool Progress::run(const Task& task) {
  if (on_thread()) {
    task();
    return true;
  }
  std::promise<void> done;
  if (!post([&] {
        task();
        done.set_value();
      })) {
    return false;
  }
  done.get_future().wait();  // bounded: tasks never block
  return true;
}

void Progress::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      posted_.push_back([this] {
        stop_by_ = Deadline::after(kStopPatience);
        call_at(*stop_by_, [] {});  // ends the sleep
      });
    }
    stopping_ = true;
    has_posted_.store(true, std::memory_order_release);
  }
  wake_.set();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

Progress::TimerKey Progress::call_at(Deadline when, Task task) {
  const TimerKey key{when.when(), next_timer_++};
  timers_.emplace(key, std::move(task));
  return key;
}

bool Progress::run_ready() {
  bool worked = false;
  if (has_posted_.load(std::memory_order_acquire)) {
    std::vector<Task> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(posted_);
      has_posted_.store(false, std::memory_order_release);
    }
    for (Task& task : tasks) task();
    worked = true;
  }
  while (!timers_.empty() && timers_.begin()->first.first <= Deadline::Clock::now()) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
    worked = true;
  }
  return run_deferred() || worked;
}

bool Progress::run_deferred() {
  bool worked = false;
  while (!deferred_.empty()) {
    std::vector<Task> tasks;
    tasks.swap(deferred_);
    for (Task& task : tasks) task();
    worked = true;
  }
  return worked;
}

bool Progress::drive_workers() {
  bool worked = false;
  std::vector<int> round;
  round.swap(active_);
  for (const int fd : round) {
    const auto found = workers_.find(fd);
    if (found == workers_.end()) continue;
    found->second.active = false;
    const std::shared_ptr<Worker> worker = found->second.worker.lock();
    if (!worker) {
      workers_.erase(found);  // its descriptor is closed and has left the epoll set
      continue;
    }
    const bool busy = worker->progress();
    worked |= busy;
    // Arming fails while events are pending.
    if (busy || !worker->arm()) activate(worker);
  }
  return worked;
}

void Progress::sleep() {
  const int timeout = timers_.empty() ? -1 : Deadline::at(timers_.begin()->first.first).poll_ms();
  if (++fruitless_ > kFruitlessRounds) {
    pollfd posted{wake_.fd(), POLLIN, 0};
    const int step = static_cast<int>(kFruitlessStep.count());
    ::poll(&posted, 1, timeout < 0 ? step : std::min(timeout, step));
  }
  std::array<epoll_event, 32> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    // Cleared where it is seen and nowhere else: who posts sets it after the task may have run, and
    // a wake-up that nobody clears would end every later sleep at once.
    if (fd == wake_.fd()) wake_.clear();
    const auto found = workers_.find(fd);
    if (found == workers_.end()) continue;
    if (const auto worker = found->second.worker.lock()) activate(worker);
  }
}

void Progress::loop() {
  pthread_setname_np(pthread_self(), "ckpt-ucx");
  while (!stopped()) {
    bool worked = run_ready();
    worked |= drive_workers();
    if (worked) fruitless_ = 0;
    if (!worked && active_.empty() && deferred_.empty()) sleep();
  }
  // The last connection may have ended in this very round: whoever waits for what it carried, as a
  // read does, has not been told yet.
  run_deferred();
}

}  // namespace ckpt::ucx
