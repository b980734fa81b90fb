// ZeroMQ as this folder uses it: envelopes over a ROUTER (hub) or a DEALER (rank), and what happens
// to connections.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "control/messages.h"
#include "control/rendezvous.h"
#include "control/route.h"

namespace ckpt::control {

/// Keeps the host process's signals out of the calling thread, for its whole life.
void block_signals();

/// ZeroMQ's I/O threads. Outlives its sockets.
class SocketContext {
 public:
  explicit SocketContext(int io_threads);
  ~SocketContext();
  SocketContext(const SocketContext&) = delete;
  SocketContext& operator=(const SocketContext&) = delete;

 private:
  friend class Socket;
  struct State;
  std::unique_ptr<State> state_;
};

/// A message as it came: `envelope` is an error when the bytes are none of ours.
struct Incoming {
  Route route;  ///< empty on a DEALER
  Result<Envelope> envelope;
};

enum class SocketEvent { kConnected, kDisconnected };

/// One thread at a time. Closing drops what is still queued.
class Socket {
 public:
  /// Listens; an empty host is every interface. kUnavailable when the address is taken.
  static Result<Socket> listen(SocketContext& context, const HostPort& address);
  /// Connects in the background, again and again. `host` is a literal. With `queue`, what is sent
  /// before the connection stands waits for it; without, send() fails until then.
  static Result<Socket> connect(SocketContext& context, const HostPort& address, bool queue);

  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  ~Socket();

  /// Where it listens.
  int port() const;
  /// False when there is no such connection. Never waits: what cannot be written yet is queued.
  bool send(const Route& route, const Envelope& envelope);
  /// The next message of those that the last wait() found, or nothing. Does not wait.
  std::optional<Incoming> receive();
  /// The next change of a connection that the last wait() found, or nothing. Does not wait.
  std::optional<SocketEvent> next_event();

  /// Waits until one of `sockets` (null ones are skipped) has something, or `fd` is readable, or
  /// the deadline.
  static void wait(std::initializer_list<Socket*> sockets, int fd, Deadline deadline);

 private:
  struct State;
  explicit Socket(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckpt::control
