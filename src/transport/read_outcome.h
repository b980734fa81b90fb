// The outcome of a read and the fate of its destinations, shared by its handle and whoever moves
// the bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// The outcome is decided once. Destinations are written to only between begin_receive and
/// end_receive, and none begins after the outcome: so "released" is final. All methods from any
/// thread.
class ReadOutcome {
 public:
  /// The first outcome wins; true when this was it.
  bool finish(Status outcome);
  bool done() const;
  /// The outcome; ok while there is none.
  Status outcome() const;
  /// Nothing when the deadline passes first.
  std::optional<Status> wait_done(Deadline until) const;
  bool released() const;
  bool wait_released(Deadline until) const;
  std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }

  /// False when the outcome stands: the data must be dropped.
  bool begin_receive();
  void end_receive(std::uint64_t arrived);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Status> outcome_;  // guarded by mutex_
  int receiving_ = 0;              // guarded by mutex_
  std::atomic<std::uint64_t> bytes_done_{0};
};

}  // namespace ckpt
