// A ZeroMQ socket of its own context, without waits: what has come, what has happened, send. The
// only place that knows libzmq.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// Who is at the other end of a connection, by the kernel's word (SO_PEERCRED at connect).
struct PeerProcess {
  std::int64_t pid = 0;  ///< 0: not visible from our pid namespace
  std::uint32_t uid = 0;
};

/// Ok when `peer` runs as the same user as we do.
Status check_same_user(const PeerProcess& peer, std::uint32_t our_uid);

struct ZmqMessage {
  std::string route;    ///< router sockets: which connection it came by
  int connection = -1;  ///< as in ZmqEvent
  std::optional<PeerProcess> sender;
  std::vector<std::byte> content;
};

/// `connection` numbers repeat: a closed one's is given to the next.
struct ZmqEvent {
  enum class Kind { kAccepted, kReady, kConnected, kRefused, kDisconnected } kind;
  int connection = -1;
};

struct ZmqOptions {
  enum class Type { kRouter, kDealer, kReq } type = Type::kRouter;
  /// A peer that is silent for so long (its i/o thread answers, not the program) is disconnected.
  double heartbeat_timeout_seconds = 5;
  /// Bound sockets: only this process may connect, instead of only this user.
  bool own_process_only = false;
};

/// One thread uses it at a time. Nothing waits but close(). Messages lie in libzmq until receive()
/// is called.
class ZmqSocket {
 public:
  /// `address` is "ipc://@name". kAlreadyExists when the name is taken.
  static Result<std::unique_ptr<ZmqSocket>> bind(const std::string& address,
                                                 const ZmqOptions& options);
  /// Tries once: kConnected or kRefused follows as an event. Never reconnects.
  static Result<std::unique_ptr<ZmqSocket>> connect(const std::string& address,
                                                    const ZmqOptions& options);
  /// Drops what was not sent.
  ~ZmqSocket();

  /// Readable after something came in; stays so only until the next receive() or send(), so call
  /// receive() until it gives nothing after every wake and every send.
  int fd() const;
  /// The same for events().
  int event_fd() const;

  /// Nothing when nothing is there.
  Result<std::optional<ZmqMessage>> receive();
  /// Whether send() would find a connection that has shaken hands. Counts as a receive() for fd().
  bool writable();
  /// kPeerLost when the connection is gone (router: `route` is unknown). `route` is for router
  /// sockets.
  Status send(const std::string& route, std::span<const std::byte> content);
  /// What has happened since the last call, oldest first.
  std::vector<ZmqEvent> events();

  /// Waits at most `linger_ms` for what was sent to reach the kernel. Again is fine.
  void close(int linger_ms);

 private:
  class Impl;
  explicit ZmqSocket(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
