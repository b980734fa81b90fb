// A rank's connection to the hub: agreement among ranks (gather, barrier, vote, key-value), updates
// and their abort, and the news of who is lost.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "control/peer_lost.h"
#include "control/rendezvous.h"

namespace ckpt {

struct JoinOptions {
  HostPort hub;
  int rank = 0;
  int world_size = 1;
  /// Ranks of different jobs refuse each other.
  std::string job;
  /// As in HubOptions; empty is none.
  std::string secret;
  /// Who shares memory with this rank: host_id() when empty.
  std::string host_id;
  /// True: rank 0 of the job runs the hub, so a lost hub is a lost rank 0.
  bool hub_is_rank_0 = false;
  /// Ends join() with its cause; may be null. Outlives that call.
  AbortSignal* abort = nullptr;
};

/// All methods from any thread, several at once; those that wait are refused (kFailedPrecondition)
/// inside the callbacks, which run on the client's own thread and must return soon: it is also the
/// one that beats.
///
/// The calls over `ranks` are made by each of these ranks, itself included, with the same set in
/// any order. Calls are matched by (epoch, tag): two that may be under way at the same time need
/// different tags. A call that fails ends with
///
/// - kPeerLost as soon as one of `ranks` is lost or leaves; the message names it,
/// - kDeadlineExceeded when one rank's deadline passed: on that rank naming who had not come
/// (asking
///   the hub takes at most 0.2 s more), on the others naming who gave up,
/// - the cause of `abort` when that is raised; on the others kAborted, naming who gave up,
/// - the cause of the update's abort, when `epoch` is not 0,
/// - kInvalidArgument on all of them when they disagree on the call or its ranks,
/// - kUnavailable when the hub is lost, kPeerLost when the hub took this rank for lost: all later
///   calls end so too, and a new client is needed.
///
/// After a failure the same tag can be used again.
class ControlClient {
 public:
  using Bytes = std::vector<std::byte>;

  /// Waits until all ranks have joined, for `patience` at most between one and the next, and so
  /// long for the hub to appear; the error names those that have not come. A rank that comes back
  /// under its number, after its former process is known dead, does not wait for others. Refused at
  /// once: another job, world size, secret or protocol version, or a number that a living rank
  /// holds.
  static Result<std::unique_ptr<ControlClient>> join(JoinOptions options,
                                                     Deadline::Clock::duration patience);
  /// Leaves.
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  int rank() const;
  int world_size() const;
  const std::string& job() const;
  const std::string& host_id() const;

  /// What each of `ranks` gave, in the order of `ranks`.
  Result<std::vector<Bytes>> all_gather(std::string_view tag, std::span<const int> ranks,
                                        std::span<const std::byte> mine, Deadline deadline,
                                        AbortSignal* abort = nullptr, std::uint64_t epoch = 0);
  Status barrier(std::string_view tag, std::span<const int> ranks, Deadline deadline,
                 AbortSignal* abort = nullptr, std::uint64_t epoch = 0);
  /// Returns when all have voted: ok when all were ok, else on every rank the error that arrived
  /// first, with its rank.
  Status vote(std::string_view tag, std::span<const int> ranks, const Status& mine,
              Deadline deadline, AbortSignal* abort = nullptr, std::uint64_t epoch = 0);

  /// Stores `value` under `key` at the hub, over an older one; returns when every later get() of
  /// any rank sees it.
  Status put(std::string_view key, std::span<const std::byte> value, Deadline deadline);
  /// Waits until the key exists.
  Result<Bytes> get(std::string_view key, Deadline deadline, AbortSignal* abort = nullptr);
  Result<bool> contains(std::string_view key, Deadline deadline);
  /// Erasing what is not there is fine.
  Status erase(std::string_view key, Deadline deadline);

  /// A new update among `ranks`: the same number on all of them, larger than every number before.
  Result<std::uint64_t> begin_update(std::string_view tag, std::span<const int> ranks,
                                     Deadline deadline, AbortSignal* abort = nullptr);
  /// This rank's part of the update is over: it hears of no abort any more, its loss does not abort
  /// the others, and messages of the epoch are dropped. Does not wait.
  void end_update(std::uint64_t epoch);
  /// Ends the update on every rank of it. The first cause that reaches the hub is the one that all
  /// ranks see, with its rank. Does not wait: this rank's own signal is raised when the hub has
  /// answered.
  void abort(std::uint64_t epoch, Status cause);
  /// Raises `signal` when the update is aborted, when one of its ranks is lost or leaves before its
  /// end_update, and when the hub is lost: at once if that is so already. Several signals of one
  /// epoch are fine. They are forgotten by end_update().
  void watch(std::uint64_t epoch, std::shared_ptr<AbortSignal> signal);

  /// A small message to one rank through the hub, in order for each pair of ranks. Dropped, without
  /// an error, when the receiver is gone or the epoch is over there; epoch 0 is never over. Does
  /// not wait.
  void send(int to_rank, std::uint64_t epoch, std::span<const std::byte> message);
  /// What send() of other ranks brings. Set it before others send: without a handler messages are
  /// dropped. Replacing it waits for a running call.
  using MessageHandler =
      std::function<void(int from_rank, std::uint64_t epoch, std::span<const std::byte> message)>;
  void set_message_handler(MessageHandler handler);

  /// Notes at the hub that this rank holds the stock channel `address`, for whoever has to rescue
  /// its worker.
  void publish_channel(std::uint64_t epoch, std::string_view address);
  void withdraw_channel(std::uint64_t epoch);
  /// Called for every rank that is lost from now on. Replacing the handler waits for a running
  /// call.
  void on_peer_lost(PeerLostHandler handler);

  /// Ok while joined; else why not: left, or how the hub was lost.
  Status state() const;
  /// Says goodbye, waits at most a second for the hub to have heard it, and closes. Others that
  /// wait for this rank fail. Waits of other threads in this client end. Again is fine. Not
  /// inside a callback.
  void leave();

 private:
  class Impl;
  explicit ControlClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
