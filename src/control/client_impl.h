// The inside of ControlClient. Callers put messages into the outbox and wait; one I/O thread owns
// the sockets, completes what waits and runs the callbacks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "control/control_client.h"
#include "control/messages.h"
#include "control/socket.h"

namespace ckpt {

class ControlClient::Impl {
 public:
  explicit Impl(JoinOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const JoinOptions& options() const { return options_; }
  /// Connects to `hub`, a literal, and waits until the job is complete or `abort` is raised.
  Status join(const HostPort& hub, Deadline::Clock::duration patience, AbortSignal& abort);
  Status state() const;
  void leave();

  /// What a request came to.
  struct Answer {
    std::uint64_t number = 0;
    std::vector<control::Payload> payloads;
  };
  /// Writes a request under the number it is given.
  using Request = std::function<control::Message(std::uint64_t number)>;
  /// Sends the request and waits for its outcome.
  Result<Answer> call(const Request& request, std::vector<control::Payload> payloads,
                      Deadline deadline, AbortSignal* abort);
  /// Sends without waiting; dropped when not joined.
  void post(control::Message message, std::vector<control::Payload> payloads = {});

  void end_update(std::uint64_t epoch);
  void watch(std::uint64_t epoch, std::shared_ptr<AbortSignal> signal);
  void set_message_handler(MessageHandler handler);
  void set_peer_lost_handler(PeerLostHandler handler);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  enum class Stage { kConnecting, kWelcomed, kJoined, kClosed };
  struct Pending {
    std::condition_variable changed;
    bool done = false;
    bool ended_here = false;  // by the abort signal: the hub must be told
    Status status;
    Answer answer;
  };
  struct Post {
    control::Envelope envelope;
    bool bulk = false;
  };
  /// An update that this rank has begun and not ended.
  struct LiveEpoch {
    Status cause;
    std::vector<std::shared_ptr<AbortSignal>> signals;
  };

  // Of callers.
  bool in_callback() const;
  void await(std::unique_lock<std::mutex>& lock, Pending& pending, std::uint64_t number, bool bulk,
             Deadline deadline);
  void push(control::Message message, std::vector<control::Payload> payloads, bool bulk);
  /// Ends every wait and raises every signal with `cause`. False when it was closed before.
  bool close_with(const Status& cause);
  static void finish(Pending& pending, Status status);

  // Of the I/O thread.
  void run(const HostPort& hub);
  TimePoint next_wake(TimePoint now) const;
  void flush();
  void follow_connections();
  Status wait_until_joined(Deadline::Clock::duration patience);
  void send_join();
  void receive(control::Socket& socket, TimePoint now);
  void handle(control::Envelope envelope);
  void on_welcome(const control::Welcome& welcome);
  void on_outcome(const control::Outcome& outcome, std::vector<control::Payload> payloads);
  void on_abort(const control::Abort& abort);
  void on_relay(const control::Relay& relay, const std::vector<control::Payload>& payloads);
  void on_lost(const control::Lost& lost);
  void set_stage(Stage stage);
  void keep_alive(TimePoint now);
  void lose_hub(std::string_view how);

  const JoinOptions options_;
  EventFd wake_;
  std::atomic<bool> stopping_{false};
  std::mutex leave_mutex_;  // one leave at a time

  mutable std::mutex mutex_;
  std::condition_variable stage_changed_;
  // Guarded by mutex_.
  Stage stage_ = Stage::kConnecting;
  Status state_;
  bool farewell_heard_ = false;
  std::uint64_t next_number_ = 1;
  std::vector<Post> outbox_;
  std::map<std::uint64_t, std::shared_ptr<Pending>> pending_;
  std::set<std::uint64_t> begins_;  // requests for a new update whose outcome has not come
  std::map<std::uint64_t, LiveEpoch> epochs_;

  std::recursive_mutex handler_mutex_;  // held while a handler runs, so that replacing it can wait
  MessageHandler message_handler_;
  PeerLostHandler peer_lost_handler_;

  // The I/O thread's own; join() sets the first before the thread starts.
  std::chrono::milliseconds patience_{0};
  std::unique_ptr<control::SocketContext> context_;
  std::optional<control::Socket> control_;
  std::optional<control::Socket> bulk_;
  HostPort hub_;
  bool hub_lost_ = false;
  std::chrono::milliseconds interval_{0};  // 0 until welcomed
  std::chrono::milliseconds timeout_{0};
  TimePoint next_beat_{};
  TimePoint hub_heard_{};

  std::thread io_;
};

}  // namespace ckpt
