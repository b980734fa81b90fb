// The listening end of the stock wire: an abstract Unix socket of our own that lets exactly one
// worker in.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "checkpoint_engine/status.h"
#include "worker/zmq_socket.h"

namespace ckpt {

/// A worker that was let in; the descriptor does not block.
struct GateConnection {
  UniqueFd fd;
  PeerProcess peer;
};

/// A bound REQ would share its buckets among all who connect, and unbinding it after the first one
/// breaks that connection (libzmq 4.3.5): so the gate accepts, and a Relay carries the bytes. One
/// thread uses it.
class Gate {
 public:
  /// Listens on "ipc://@name". kAlreadyExists when the name is taken.
  static Result<Gate> open(const std::string& address);

  /// Readable when somebody connects; -1 while closed.
  int fd() const { return listener_.get(); }
  /// Lets one worker in and stops listening; nothing when nobody (of our user) is there. Does not
  /// wait.
  Result<std::optional<GateConnection>> accept();
  /// Listens again after accept(). Again is fine.
  Status reopen();

 private:
  explicit Gate(std::string address) : address_(std::move(address)) {}

  std::string address_;
  UniqueFd listener_;
};

/// Who is at the other end of a Unix socket.
Result<PeerProcess> peer_of(int fd);

/// Connects to the abstract socket of "ipc://@name".
Result<UniqueFd> connect_abstract(const std::string& address);

}  // namespace ckpt
