// Who is at the rank's native address, and what they have said: the one worker that is served,
// those that knock meanwhile, and the first failure of the pass. One thread at a time.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/strings.h"
#include "worker/lost_worker.h"
#include "worker/native_messages.h"
#include "worker/process_watch.h"
#include "worker/wait.h"
#include "worker/wire.h"
#include "worker/zmq_socket.h"

namespace ckpt::native {

/// A connection that has said hello.
struct Caller {
  std::string route;
  int connection = -1;
  PeerProcess process;
  Hello hello;
};

class Connection {
 public:
  static Result<std::unique_ptr<Connection>> bind(const ChannelOptions& options,
                                                  const std::string& address);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Readable when there may be something to do.
  int poll_fd() const { return poll_set_.fd(); }
  /// Reads everything that libzmq holds: its descriptors only report what comes after the last
  /// read.
  void pump();

  bool anybody_knocks() const { return !knocks_.empty(); }
  /// The one that has knocked longest becomes the peer, with a clean slate. False when nobody has.
  bool serve_next();
  /// From here on the peer's end is an error of this pass.
  void watch_peer();
  /// Its last answer is under way, and it may knock for the next pass before that is read.
  void let_peer_knock_again() { finishing_ = true; }
  /// The pass is over; nothing that the peer does now is of interest.
  void part();
  const std::optional<Caller>& peer() const { return peer_; }
  /// The process of the peer, as the kernel or else it itself says; 0 without a peer.
  int peer_pid() const;
  /// "the worker of rank 3 (pid 4711)", for messages.
  std::string peer_text() const;

  /// Fails when the pass has failed already, with that cause.
  Status send(const Body& body) { return send(encode(options_.epoch, body)); }
  Status send(const Bytes& message);
  /// Tells the peer why it is not served, as far as it still listens.
  void refuse_peer(const Status& why);
  /// Waits for the peer's next message, which must be a T. `step` names what it answers.
  template <typename T>
  Result<T> expect(std::string_view step, Deadline deadline, AbortSignal& abort) {
    CKPT_ASSIGN_OR_RETURN(Message message, next_message(step, deadline, abort));
    if (auto* wanted = std::get_if<T>(&message.body)) return std::move(*wanted);
    fail(protocol_error(concat(peer_text(), " answered ", body_name(message.body), " to ", step)));
    return failure_;
  }

  /// The first cause that ended this pass.
  const Status& failure() const { return failure_; }
  void fail(Status cause);
  /// Nothing has begun that could have failed: another may come.
  void forget_failure() {
    failure_ = Status::ok();
    stopped_.reset();
  }

  /// The peer and all who knock, now or later, are told `cause`.
  void start_abort(const Status& cause);
  WorkerWire::AbortProgress abort_step();
  /// During an abort: the peer's going is not waited for any more.
  void cut();

 private:
  Connection(const ChannelOptions& options, std::unique_ptr<ZmqSocket> socket, PollSet poll_set)
      : options_(options), socket_(std::move(socket)), poll_set_(std::move(poll_set)) {}

  Result<Message> next_message(std::string_view step, Deadline deadline, AbortSignal& abort);
  void drain();
  void dispatch(ZmqMessage message);
  void take_from_peer(Message message);
  void take_hello(Caller caller);
  void lose_peer(std::string_view how);
  void drop_peer();
  void refuse(const Caller& caller, const Status& why);

  const ChannelOptions options_;
  std::unique_ptr<ZmqSocket> socket_;
  PollSet poll_set_;
  EventFd backlog_;  ///< set while something that has been read from the socket waits for a call
  UniqueFd peer_watch_;
  UniqueFd peer_connection_;  ///< the kernel's, beside libzmq's descriptor of it
  std::optional<Caller> peer_;
  std::optional<LostWorker> stopped_;  ///< was the peer
  bool finishing_ = false;
  bool served_ = false;  ///< somebody has been told how this ended, or has gone by itself
  Status failure_;
  Status abort_cause_;
  std::deque<Message> inbox_;
  std::deque<Caller> knocks_;
};

}  // namespace ckpt::native
