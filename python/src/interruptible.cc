#include "interruptible.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace ckpt::python {
namespace {

constexpr std::chrono::milliseconds kSignalInterval{50};
constexpr std::chrono::milliseconds kInterruptPatience{800};

struct Completion {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;

  bool wait(std::chrono::milliseconds limit) {
    const nb::gil_scoped_release without_gil;
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, limit, [this] { return done; });
  }
};

}  // namespace

void wait_for(std::function<void()> work, const std::function<void()>& interrupt) {
  const auto completion = std::make_shared<Completion>();
  std::thread([completion, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // what it owns goes before the caller goes on
    {
      const std::lock_guard lock(completion->mutex);
      completion->done = true;
    }
    completion->changed.notify_all();
  }).detach();
  while (!completion->wait(kSignalInterval)) {
    if (PyErr_CheckSignals() == 0) continue;
    nb::python_error raised;
    if (interrupt) interrupt();
    completion->wait(kInterruptPatience);
    throw raised;
  }
}

}  // namespace ckpt::python
