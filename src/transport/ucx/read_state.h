// One read under way, shared by its handle and the progress thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/read_plan.h"
#include "transport/transport.h"
#include "transport/ucx/progress.h"

namespace ckpt::ucx {

struct PeerState;

/// The outcome is decided once. UCX writes to destinations only between begin_receive and
/// end_receive, and none begins after the outcome: so "released" is final.
class ReadState {
 public:
  // Any thread.
  /// The first outcome wins; true when this was it.
  bool finish(Status outcome);
  bool done() const;
  /// Nothing when the deadline passes first.
  std::optional<Status> wait_done(Deadline until) const;
  bool released() const;
  bool wait_released(Deadline until) const;
  std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }

  // Progress thread.
  /// False when the outcome stands: the data must be dropped.
  bool begin_receive();
  void end_receive(std::uint64_t arrived);
  Status outcome() const;

  /// What is known of a request that was sent.
  struct Waiting {
    bool receiving = false;
    bool data = false;
    bool served = false;
  };

  // Set before the read is started.
  std::shared_ptr<PeerState> peer;
  std::uint64_t bytes = 0;
  Deadline deadline = Deadline::after_seconds(0);
  std::vector<ReadRequest> requests;

  // Of the progress thread.
  std::uint64_t id = 0;
  Transport::ReadCallback callback;
  std::uint32_t next_request = 0;
  std::map<std::uint32_t, Waiting> waiting;
  std::optional<Progress::TimerKey> timer;
  bool retired = false;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Status> outcome_;  // guarded by mutex_
  int receiving_ = 0;              // guarded by mutex_
  std::atomic<std::uint64_t> bytes_done_{0};
};

}  // namespace ckpt::ucx
