// The turns of a service's operations: one after the other, in the order of their arrival, and not
// without bound.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// All methods from any thread.
class OperationQueue {
 public:
  /// At most `limit` operations run and wait.
  explicit OperationQueue(int limit) : limit_(limit) {}

  enum class Kind {
    kQueued,  ///< waits until those before it have ended
    kAtOnce,  ///< refused while another of this kind runs or waits
  };

  /// The right to run, until it is destroyed.
  class Turn {
   public:
    Turn(OperationQueue& queue, Kind kind) : queue_(&queue), kind_(kind) {}
    Turn(Turn&& other) noexcept : queue_(other.queue_), kind_(other.kind_) {
      other.queue_ = nullptr;
    }
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (queue_ != nullptr) queue_->end(kind_);
    }

   private:
    OperationQueue* queue_;
    Kind kind_;
  };

  /// Returns when it is this operation's turn. kFailedPrecondition: another kAtOnce is there.
  /// kUnavailable: too many wait already, the turn has not come by the deadline, or the queue is
  /// closed.
  Result<Turn> begin(Kind kind, const std::string& what, Deadline deadline);
  /// What runs now, as given to begin(); empty: nothing.
  std::string running() const;
  /// How many wait for their turn.
  int waiting() const;
  /// Refuses all that wait and all that come.
  void close();

 private:
  void end(Kind kind);

  const int limit_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<const void*> order_;  // the first one runs
  int at_once_ = 0;
  bool closed_ = false;
  std::string running_;
};

}  // namespace ckpt
