// The calls of a server that are under way or wait for their turn, so that they can be ended.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/abort_signal.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

class RunningCalls {
 public:
  /// A call, for as long as this exists; one thread's own.
  class Call {
   public:
    explicit Call(RunningCalls& calls);
    /// Its turn is over, if it had one.
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// Returns when no other call has the turn and this one has it, or the cause when it is
    /// cancelled first: it must do nothing then. Once.
    Status wait_for_turn();
    /// Raised when the call is cancelled.
    AbortSignal* signal() { return signal_.get(); }
    /// Replaces the callback before; not run any more once the call is over.
    void on_cancel(AbortSignal::Callback callback);

   private:
    RunningCalls& calls_;
    const std::shared_ptr<AbortSignal> signal_;
    int subscription_ = -1;
    bool has_turn_ = false;
  };

  /// The turn, for what has to be done whatever happens: waited for, and held for as long as this
  /// exists.
  class Turn {
   public:
    explicit Turn(RunningCalls& calls);
    ~Turn() { calls_.end_turn(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    RunningCalls& calls_;
  };

  /// While this exists, the calls that this thread begins are those of `signal`: they end when it
  /// is raised, and others go on.
  class EndedBy {
   public:
    explicit EndedBy(std::shared_ptr<AbortSignal> signal);
    ~EndedBy();
    EndedBy(const EndedBy&) = delete;
    EndedBy& operator=(const EndedBy&) = delete;
  };

  /// Ends the calls that are under way or wait now, with `cause`. From any thread.
  void cancel(const Status& cause);

 private:
  void end_turn();

  std::mutex mutex_;
  std::vector<std::shared_ptr<AbortSignal>> signals_;
  bool turn_taken_ = false;
  std::condition_variable turn_changed_;
};

}  // namespace ckpt
