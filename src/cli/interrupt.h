// A signal from the user while a rank works: in the middle of an update it is the update's cause of
// failure, told to every rank; elsewhere it ends the process, as if nobody had caught it.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/abort_signal.h"
#include "base/fd.h"
#include "cli/stop_signals.h"

namespace ckpt {

/// One for the process; make it before any other thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// While one exists, the first signal raises signal() instead of ending the process; a second
  /// one, or five seconds, end it.
  class Update {
   public:
    explicit Update(Interrupt& interrupt) : interrupt_(interrupt) { interrupt_.updating_ = true; }
    ~Update() { interrupt_.updating_ = false; }
    Update(const Update&) = delete;
    Update& operator=(const Update&) = delete;

   private:
    Interrupt& interrupt_;
  };

  const std::shared_ptr<AbortSignal>& signal() const { return signal_; }

 private:
  void watch();

  StopSignals signals_;
  EventFd done_;
  std::atomic<bool> updating_{false};
  std::shared_ptr<AbortSignal> signal_ = std::make_shared<AbortSignal>();
  std::thread thread_;
};

}  // namespace ckpt
