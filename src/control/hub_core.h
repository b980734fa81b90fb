// All state of the hub and every decision it takes; messages in, messages out. No socket, no clock,
// no thread: hub.cc feeds it, tests too.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "control/collective_table.h"
#include "control/epoch_table.h"
#include "control/key_value_store.h"
#include "control/membership.h"
#include "control/messages.h"
#include "control/peer_lost.h"

namespace ckpt::control {

struct Outgoing {
  Route route;
  Envelope envelope;
};

class HubCore {
 public:
  struct Options {
    JobTerms terms;
    std::chrono::milliseconds heartbeat_interval{1000};
    std::chrono::milliseconds heartbeat_timeout{5000};
    /// A new unguessable text per call.
    std::function<std::string()> new_session;
    /// A rank is lost; may be empty.
    PeerLostHandler on_lost;
  };

  explicit HubCore(Options options) : options_(std::move(options)), membership_(options_.terms) {}

  void receive(const Route& route, Envelope envelope, TimePoint now);
  /// Something that is no message came from `route`.
  void receive_garbage(const Route& route, const Status& what);
  /// `route` is known to be closed.
  void disconnected(const Route& route);
  /// Beats, and declares lost who has been silent for too long. `now` may be at any time.
  void tick(TimePoint now);
  /// When tick() is due again.
  TimePoint next_tick() const { return next_tick_; }
  /// The hub itself stood still for `gap`: nobody's silence during it counts.
  void excuse(std::chrono::steady_clock::duration gap);
  /// True for a rank that wants to join under the number of a member.
  bool claims_held_rank(const Message& message) const;
  /// Sends a beat to every connection, so that closed ones are found.
  void probe();

  /// True when somebody has joined and nobody is left.
  bool empty() const { return membership_.used() && membership_.members().empty(); }
  /// What has to be sent, in order. Sending may fail with a closed route: report it by
  /// disconnected().
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }

 private:
  void join(const Route& route, const Join& join, TimePoint now);
  void handle(Member& member, const Message& message, std::vector<Payload> payloads);
  void contribute(Member& member, const Contribute& call, std::vector<Payload> payloads);
  void withdraw(Member& member, const Withdraw& request);
  void relay(Member& member, const Relay& relay, std::vector<Payload> payloads);
  void end_update(int rank, std::uint64_t epoch);
  void announce_complete();
  void leave(Member& member);
  void lose(int rank, const Status& cause);
  /// What leaving and dying have in common.
  Member remove(int rank, const Status& cause);
  void expire_patience(TimePoint now);

  void publish(const Completions& completions);
  void publish(const AbortNotice& notice);
  void answer(int rank, std::uint64_t request, const Status& cause, std::uint64_t number = 0,
              std::vector<Payload> payloads = {});
  void send(const Route& route, Message message, std::vector<Payload> payloads = {});

  Options options_;
  Membership membership_;
  CollectiveTable collectives_;
  EpochTable epochs_;
  KeyValueStore store_;
  std::vector<Outgoing> outgoing_;
  TimePoint next_tick_{};
  TimePoint next_beat_{};
};

}  // namespace ckpt::control
