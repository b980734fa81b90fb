#include "parameter_server/engine_call_thread.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace ckpt {
namespace {

// For a call that was cancelled to come back.
constexpr std::chrono::seconds kCancelPatience{5};

class Context : public EngineCallContext {
 public:
  Context(int rank, Deadline deadline) : rank_(rank), deadline_(deadline) {}

  int rank() const override { return rank_; }
  double remaining_seconds() const override { return deadline_.remaining_seconds(); }
  bool cancelled() const override { return cancelled_.load(); }
  void on_cancel(std::function<void()> stop) override {
    {
      const std::lock_guard lock(mutex_);
      if (!cancelled_) {
        stop_ = std::move(stop);
        return;
      }
    }
    if (stop) stop();
  }
  void cancel() {
    std::function<void()> stop;
    {
      const std::lock_guard lock(mutex_);
      if (cancelled_.exchange(true)) return;
      stop.swap(stop_);
    }
    // The caller's code: it may ask anything of this context.
    if (stop) stop();
  }

 private:
  const int rank_;
  const Deadline deadline_;
  std::mutex mutex_;
  std::function<void()> stop_;
  std::atomic<bool> cancelled_{false};
};

Status run_guarded(const EngineCall& call, const std::vector<WorkerAddress>& all_ranks,
                   Context& context) {
  // The call is the caller's code: its exceptions end here.
  try {
    return call(all_ranks, context);
  } catch (const std::exception& error) {
    return peer_error(concat("the engine call threw: ", error.what()));
  } catch (...) {
    return peer_error("the engine call threw something that is no std::exception");
  }
}

}  // namespace

struct EngineCallThread::Shared {
  Shared(int rank, Deadline deadline) : context(rank, deadline) {}
  Context context;
  std::shared_ptr<AbortSignal> abort;
  int subscription = -1;
  std::thread thread;
  std::mutex mutex;
  std::condition_variable condition;
  bool done = false;
};

std::unique_ptr<EngineCallThread> EngineCallThread::start(
    EngineCall call, std::vector<WorkerAddress> all_ranks, int rank, Deadline deadline,
    std::shared_ptr<AbortSignal> abort, std::function<void(const Status&)> returned) {
  std::unique_ptr<EngineCallThread> result(new EngineCallThread);
  const auto shared = result->shared_ = std::make_shared<Shared>(rank, deadline);
  shared->abort = std::move(abort);
  shared->subscription =
      shared->abort->subscribe([context = &shared->context](const Status&) { context->cancel(); });
  shared->thread = std::thread([shared, call = std::move(call), all_ranks = std::move(all_ranks),
                                returned = std::move(returned)] {
    const Status status = run_guarded(call, all_ranks, shared->context);
    {
      const std::lock_guard lock(shared->mutex);
      // A call that outlived its update has nobody to tell. Locked, so that the destructor cannot
      // end the update between the question and the telling.
      if (!shared->done && returned) returned(status);
      shared->done = true;
    }
    shared->condition.notify_all();
  });
  return result;
}

EngineCallThread::~EngineCallThread() {
  shared_->abort->unsubscribe(shared_->subscription);
  shared_->context.cancel();
  std::unique_lock lock(shared_->mutex);
  const bool done =
      shared_->condition.wait_for(lock, kCancelPatience, [&] { return shared_->done; });
  shared_->done = true;
  lock.unlock();
  if (done) {
    shared_->thread.join();
  } else {
    log_warning("an engine call has not returned ", kCancelPatience.count(),
                " s after its cancellation; it is left behind");
    shared_->thread.detach();
  }
}

}  // namespace ckpt
