// What stands behind the handles of a callback transport: its peers, each with a thread and a
// queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transport/callback/callback_transport.h"
#include "transport/counters.h"
#include "transport/descriptor.h"
#include "transport/read_outcome.h"
#include "transport/signal_inbox.h"

namespace ckpt::callback {

class PeerQueue;

/// Of one transport; lives until the last handle is gone.
struct Engine {
  TransportCallbacks callbacks;
  std::string instance;
  std::string label;
  std::atomic<std::uint64_t> next_region{1};
  std::atomic<bool> closed{false};
  TransportCounters counters;
  SignalInbox inbox;

  void add_region(Descriptor::Region region);
  void remove_region(std::uint64_t id);
  std::vector<Descriptor::Region> regions() const;
  void add_peer(const std::shared_ptr<PeerQueue>& peer);
  void close();

 private:
  mutable std::mutex mutex_;
  std::vector<Descriptor::Region> regions_;      // guarded by mutex_, by rising id
  std::vector<std::weak_ptr<PeerQueue>> peers_;  // guarded by mutex_
};

/// A read, or with `signal` set a message.
struct Job {
  ReadOutcome outcome;
  AbortSignal abort;
  Deadline deadline = Deadline::after_seconds(0);
  std::string label;
  std::uint64_t bytes = 0;
  std::vector<TransportCallbacks::Piece> pieces;
  Transport::ReadCallback callback;
  bool is_signal = false;
  std::vector<std::byte> message;

  Status too_late() const;
};

/// All methods from any thread.
class PeerQueue : public std::enable_shared_from_this<PeerQueue> {
 public:
  static std::shared_ptr<PeerQueue> start(std::shared_ptr<Engine> engine, Descriptor descriptor,
                                          std::function<void(const Status&)> on_lost);
  PeerQueue(std::shared_ptr<Engine> engine, Descriptor descriptor,
            std::function<void(const Status&)> on_lost);

  const TransportCallbacks::Remote& remote() const { return remote_; }
  std::span<const RemoteRegion> regions() const { return regions_; }
  /// `ranges` must have been checked.
  std::vector<TransportCallbacks::Piece> pieces(std::span<const ReadRange> ranges) const;
  Status status() const;
  /// A job that has its outcome already is only reported to its callback.
  void push(std::shared_ptr<Job> job);
  Status push_signal(std::vector<std::byte> message);
  /// Ends all jobs with kAborted. Idempotent; does not wait.
  void close();
  /// Waits for the thread; after close().
  void join();

 private:
  void loop();
  void run(Job& job);
  void run_read(Job& job);
  void run_signal(Job& job);
  void report(Job& job);
  bool make_unusable(const Status& why);

  const std::shared_ptr<Engine> engine_;
  const Descriptor descriptor_;
  const TransportCallbacks::Remote remote_;
  std::vector<RemoteRegion> regions_;
  const std::function<void(const Status&)> on_lost_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> queue_;  // guarded by mutex_
  std::shared_ptr<Job> running_;            // guarded by mutex_
  Status why_unusable_;                     // guarded by mutex_
  bool closed_ = false;                     // guarded by mutex_
  std::uint64_t signal_bytes_ = 0;          // guarded by mutex_
  std::thread thread_;
};

}  // namespace ckpt::callback
