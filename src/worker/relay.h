// Carries bytes both ways between the worker's connection and our private REQ endpoint.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// A thread that lives until either side closes, the watched process ends, or the relay is
/// destroyed. Then it passes on what it has, and closes both: the private endpoint sees the end
/// after the last byte.
class Relay {
 public:
  /// Both descriptors must not block. `process` (watch_process) may be empty.
  Relay(UniqueFd worker, UniqueFd endpoint, UniqueFd process);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Ends without a word to the worker, whose connection is given back.
  UniqueFd part();

  enum class End { kRunning, kWorkerClosed, kWorkerEnded, kEndpointClosed };
  /// Why it has ended. Any thread.
  End end() const { return end_.load(std::memory_order_acquire); }

 private:
  void run();

  UniqueFd worker_, endpoint_, process_;
  EventFd stop_;
  std::atomic<bool> parting_{false};
  std::atomic<End> end_{End::kRunning};
  std::thread thread_;
};

}  // namespace ckpt
