// The one way to end waits early: a flag with its cause, shared by all threads of one activity (an
// update, a connection).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Raised once; the first cause wins and stays. All methods from any thread.
class AbortSignal {
 public:
  using Callback = std::function<void(const Status&)>;

  /// True when this call was the first. `cause` must not be ok. Runs the callbacks on this thread.
  bool raise(Status cause);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// The cause, or ok while not raised.
  Status cause() const;
  /// Readable for poll(2) once raised.
  int fd() const { return event_.fd(); }

  /// Runs `callback` once with the cause: at once if raised already. Returns a key for unsubscribe.
  int subscribe(Callback callback);
  /// Afterwards the callback is not running and will not run. Not from inside a callback.
  void unsubscribe(int key);

 private:
  std::atomic<bool> raised_{false};
  EventFd event_;
  mutable std::mutex mutex_;
  Status cause_;
  int next_key_ = 0;
  std::map<int, Callback> callbacks_;
  std::recursive_mutex running_;  // held while callbacks run, so that unsubscribe can wait for them
};

}  // namespace ckpt
