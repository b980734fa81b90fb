// One worker on the stock wire: question and answer over a private REQ endpoint that a relay joins
// to the worker's connection.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "worker/gate.h"
#include "worker/relay.h"
#include "worker/wait.h"
#include "worker/zmq_socket.h"

namespace ckpt {

/// One thread uses it; nothing waits.
class StockSession {
 public:
  static Result<std::unique_ptr<StockSession>> start(GateConnection worker,
                                                     double heartbeat_timeout_seconds);

  /// Readable when pump() has something to do.
  int poll_fd() const { return poll_set_.fd(); }
  /// Takes in what has come.
  void pump();

  std::int64_t pid() const { return peer_.pid; }
  /// The worker's socket has shaken hands: the first question may be asked.
  bool ready() const { return ready_; }
  /// A question was asked and not answered: none may be asked now.
  bool owed() const { return owed_; }
  /// The connection is over; what the worker said before is still in take_answer().
  bool lost() const { return lost_; }
  /// The worker itself has ended or closed it; after lost().
  bool left() const {
    const Relay::End end = relay_->end();
    return end == Relay::End::kWorkerEnded || end == Relay::End::kWorkerClosed;
  }
  /// "has ended", "closed its connection", "stopped answering": after lost().
  std::string_view how_lost() const;

  /// The end, after which nothing else may be called: the worker's connection, still open.
  UniqueFd part() { return relay_->part(); }

  Status ask(std::span<const std::byte> question);
  std::optional<std::string> take_answer();

 private:
  StockSession(std::unique_ptr<ZmqSocket> socket, PollSet poll_set, PeerProcess peer)
      : socket_(std::move(socket)), poll_set_(std::move(poll_set)), peer_(peer) {}

  void take_answers();

  std::unique_ptr<ZmqSocket> socket_;
  PollSet poll_set_;
  PeerProcess peer_;
  std::unique_ptr<Relay> relay_;
  EventFd backlog_;  ///< set while an answer has been read from the socket and not been taken
  bool ready_ = false;
  bool owed_ = false;
  bool lost_ = false;
  std::optional<std::string> answer_;
};

}  // namespace ckpt
