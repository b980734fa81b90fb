// The side of a process that reads from others: peers and the reads from them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/descriptor.h"
#include "transport/transport.h"
#include "transport/ucx/destinations.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/owner.h"
#include "transport/ucx/progress.h"
#include "transport/ucx/read_state.h"

namespace ckpt::ucx {

/// Bytes asked for and not answered, per peer: enough for a fast link, little to wait for when a
/// read is cancelled.
inline constexpr std::uint64_t kReadWindow = 8 * kReadGrain;

struct PeerState {
  // Fixed.
  std::uint64_t connection = 0;
  std::string label;
  Descriptor descriptor;
  std::vector<RemoteRegion> regions;
  std::function<void(const Status&)> on_lost;

  // Any thread.
  std::atomic<std::uint64_t> queued_signal_bytes{0};
  Status status() const {
    const std::lock_guard lock(mutex);
    return why_unusable;
  }
  mutable std::mutex mutex;
  Status why_unusable;  // guarded by mutex; not ok once lost or closed

  // Of the progress thread.
  std::unique_ptr<Endpoint> endpoint;  // from the first use on
  std::uint64_t next_sequence = 0;
  std::uint64_t window = 0;                      // bytes asked for and not answered
  std::deque<std::shared_ptr<ReadState>> queue;  // with requests still to be sent
};

/// All on the progress thread.
class Reader {
 public:
  Reader(Progress& progress, const Identity& identity, TransportCounters& counters,
         const Destinations& destinations)
      : progress_(progress),
        identity_(identity),
        counters_(counters),
        destinations_(destinations) {}

  void start(std::shared_ptr<ReadState> read);
  /// Does what is left to do for a read that has its outcome. Idempotent.
  void retire(const std::shared_ptr<ReadState>& read);
  void signal(const std::shared_ptr<PeerState>& peer, std::vector<std::byte> message);
  /// Ends the connection with an error that all its reads get; tells on_lost.
  void lose(const std::shared_ptr<PeerState>& peer, const Status& why);
  void close(const std::shared_ptr<PeerState>& peer);
  void close_all();

  void on_data(Arrival& arrival);
  /// A message of an owner: Refusal or Served.
  void on_message(const Message& message);
  /// Begins to connect at once, so that peers that are made together connect side by side and not
  /// each when it is first used.
  void add_peer(const std::shared_ptr<PeerState>& peer) {
    peers_[peer->connection] = peer;
    connect(peer);
  }

 private:
  bool connect(const std::shared_ptr<PeerState>& peer);
  void cut(const std::shared_ptr<PeerState>& peer);
  bool make_unusable(PeerState& peer, const Status& why);
  void fail_reads(const PeerState& peer, const Status& why);
  void pump(PeerState& peer);
  void send_next_request(PeerState& peer, ReadState& read);
  void receive(const std::shared_ptr<ReadState>& read, std::uint32_t request, Arrival& arrival);
  void received(const std::shared_ptr<ReadState>& read, std::uint32_t request, bool snapshot,
                const Status& status);
  void settle(const std::shared_ptr<ReadState>& read, std::uint32_t request);
  void settle_if_complete(const std::shared_ptr<ReadState>& read, std::uint32_t request);
  void forget_if_idle(const std::shared_ptr<ReadState>& read);
  void on_refusal(const std::shared_ptr<PeerState>& peer, const Refusal& refusal);

  Progress& progress_;
  const Identity& identity_;
  TransportCounters& counters_;
  const Destinations& destinations_;
  std::uint64_t next_read_ = 1;
  std::map<std::uint64_t, std::shared_ptr<ReadState>> reads_;  // until nothing is in flight
  std::map<std::uint64_t, std::shared_ptr<PeerState>> peers_;  // by connection, until cut
};

}  // namespace ckpt::ucx
