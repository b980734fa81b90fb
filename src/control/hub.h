// The hub: one thread that all ranks of a job are connected to. It gathers, counts, numbers
// updates, relays small messages, and tells everybody who is lost. No tensor passes through it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "control/peer_lost.h"
#include "control/rendezvous.h"

namespace ckpt {

struct HubOptions {
  /// Where to listen; "" is every interface, IPv4 and IPv6.
  std::string bind_host;
  /// 0: the kernel chooses.
  int port = 0;
  /// When unset, the first rank that joins fixes them; others must agree.
  std::optional<std::string> job;
  std::optional<int> world_size;
  /// Ranks must present the same one. It travels in clear: it keeps strangers out by mistake, not
  /// by force.
  std::string secret;
  /// Both directions beat at this interval, or at a fifth of the timeout where that is shorter;
  /// ranks are told on joining.
  std::chrono::milliseconds heartbeat_interval{1000};
  /// A rank that is silent for so long is lost. A closed connection is a loss at once.
  std::chrono::milliseconds heartbeat_timeout{5000};
  /// A rank is lost. On the hub's thread: must return soon.
  PeerLostHandler on_lost;
};

/// A running hub. Methods from any thread.
class Hub {
 public:
  /// Binds and starts the thread. kUnavailable when the address is taken.
  static Result<std::unique_ptr<Hub>> start(HubOptions options);
  /// Stops at once: ranks that are still connected take the hub for lost. Use wait_until_empty()
  /// first.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  /// Where ranks of this host can connect (127.0.0.1 when it listens on every interface), with the
  /// real port.
  HostPort address() const;
  /// Returns when at least one rank has joined and every rank that joined has left or is lost.
  Status wait_until_empty(Deadline deadline);

 private:
  class Impl;
  explicit Hub(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
