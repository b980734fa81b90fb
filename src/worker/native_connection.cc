#include "worker/native_connection.h"

#include <fcntl.h>

#include <set>

#include "base/log.h"
#include "worker/channel_address.h"
#include "worker/gate.h"

namespace ckpt::native {
namespace {

/// For a refusal that was sent last; a living peer's socket takes it at once.
constexpr int kLingerMs = 500;

/// A descriptor of our own, which outlives libzmq's: when that gives a silent peer up, only the
/// connection itself tells whether the peer has gone. Empty when it is closed already.
UniqueFd connection_of(const Caller& caller) {
  UniqueFd fd(::fcntl(caller.connection, F_DUPFD_CLOEXEC, 0));
  if (!fd) return UniqueFd();
  const auto peer = peer_of(fd.get());  // libzmq may have closed it, and its number be another's
  return peer && peer->pid == caller.process.pid ? std::move(fd) : UniqueFd();
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::bind(const ChannelOptions& options,
                                                     const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(const std::string native, native_address(address));
  ZmqOptions zmq;
  zmq.heartbeat_timeout_seconds = options.heartbeat_timeout_seconds;
  CKPT_ASSIGN_OR_RETURN(auto socket, ZmqSocket::bind(native, zmq));
  CKPT_ASSIGN_OR_RETURN(PollSet poll_set, PollSet::create());
  std::unique_ptr<Connection> made(new Connection(options, std::move(socket), std::move(poll_set)));
  CKPT_RETURN_IF_ERROR(made->poll_set_.add(made->socket_->fd()));
  CKPT_RETURN_IF_ERROR(made->poll_set_.add(made->socket_->event_fd()));
  CKPT_RETURN_IF_ERROR(made->poll_set_.add(made->backlog_.fd()));
  return made;
}

Connection::~Connection() { socket_->close(kLingerMs); }

std::string Connection::peer_text() const {
  if (!peer_) return concat("the worker of rank ", options_.rank);
  return concat("the worker of rank ", options_.rank, " (pid ", peer_pid(), ")");
}

int Connection::peer_pid() const {
  if (!peer_) return 0;
  return static_cast<int>(peer_->process.pid > 0 ? peer_->process.pid : peer_->hello.pid);
}

void Connection::fail(Status cause) {
  if (failure_.is_ok()) failure_ = std::move(cause);
}

void Connection::lose_peer(std::string_view how) {
  fail(peer_lost(concat(peer_text(), " ", how, "; see that process's log")));
  const bool ended = peer_watch_ && readable_now(peer_watch_.get());
  if (ended || !peer_connection_ || closed_by_peer(peer_connection_)) {
    served_ = true;
  } else {
    // By the number that the kernel gave: the worker's own may be another process's here.
    stopped_.emplace(peer_->process.pid, std::move(peer_connection_), options_.late_worker_seconds);
  }
  drop_peer();
}

void Connection::drop_peer() {
  peer_watch_.reset();
  peer_connection_.reset();
  peer_.reset();
}

bool Connection::serve_next() {
  if (knocks_.empty()) return false;
  peer_ = std::move(knocks_.front());
  knocks_.pop_front();
  inbox_.clear();
  failure_ = Status::ok();
  finishing_ = false;
  return true;
}

void Connection::part() {
  drop_peer();
  pump();
}

void Connection::pump() {
  const std::size_t known = knocks_.size();
  drain();
  std::set<int> closed;
  std::set<int> reopened;
  for (const ZmqEvent& event : socket_->events()) {
    if (event.kind == ZmqEvent::Kind::kAccepted) reopened.insert(event.connection);
    if (event.kind == ZmqEvent::Kind::kDisconnected) {
      closed.insert(event.connection);
      reopened.erase(event.connection);
    }
  }
  const bool peer_ended = peer_watch_ && readable_now(peer_watch_.get());
  if (!closed.empty() || peer_ended) {
    // Numbers of connections repeat. One that was known before this pump is closed whenever its
    // number is; a newer one only if the number was not given out again.
    for (std::size_t i = knocks_.size(); i-- > 0;) {
      const int connection = knocks_[i].connection;
      if (closed.contains(connection) && (i < known || !reopened.contains(connection))) {
        knocks_.erase(knocks_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    drain();  // what it said before it went
    if (peer_ && peer_ended) {
      lose_peer("has ended");
    } else if (peer_ && closed.contains(peer_->connection)) {
      lose_peer("closed its connection or stopped answering");
    }
  }
  if (inbox_.empty() && knocks_.empty() && failure_.is_ok()) {
    backlog_.clear();
  } else {
    backlog_.set();
  }
}

void Connection::drain() {
  while (true) {
    auto message = socket_->receive();
    if (!message) return fail(message.status().with_context(peer_text()));
    if (!*message) return;
    dispatch(**std::move(message));
  }
}

void Connection::dispatch(ZmqMessage raw) {
  const bool from_peer = peer_ && raw.route == peer_->route;
  auto message = decode(raw.content);
  if (!message) {
    if (from_peer) return fail(message.status().with_context(peer_text()));
    return log_debug("native wire of rank ", options_.rank,
                     ": dropped a stranger's message: ", message.status().message());
  }
  if (from_peer) return take_from_peer(*std::move(message));
  if (auto* hello = std::get_if<Hello>(&message->body)) {
    return take_hello(
        {raw.route, raw.connection, raw.sender.value_or(PeerProcess{}), std::move(*hello)});
  }
}

void Connection::take_from_peer(Message message) {
  if (message.epoch != options_.epoch) return;
  const auto* failure = std::get_if<Failure>(&message.body);
  if (failure == nullptr) return inbox_.push_back(std::move(message));
  const std::string text = concat(peer_text(), ": ", failure->cause.message());
  // Damaged weights keep their own kind, whoever found them; anything else is the worker's affair.
  fail(failure->cause.code() == StatusCode::kDataLoss ? data_loss(text) : peer_error(text));
}

void Connection::take_hello(Caller caller) {
  if (!abort_cause_.is_ok()) {
    served_ = true;
    return refuse(caller, abort_cause_);
  }
  if (peer_ && !finishing_) {
    return refuse(caller,
                  already_exists(concat(peer_text(), " is being updated already; process ",
                                        caller.process.pid,
                                        " came second: is one address given to two workers?"))
                      .on_rank(options_.rank));
  }
  knocks_.push_back(std::move(caller));
}

Status Connection::send(const Bytes& message) {
  if (!failure_.is_ok()) return failure_;
  if (!peer_) return internal_error("send without a worker");
  const Status sent = socket_->send(peer_->route, message);
  pump();  // sending may have consumed the descriptor's news
  if (sent.code() == StatusCode::kPeerLost && failure_.is_ok()) lose_peer("closed its connection");
  if (!sent.is_ok() && failure_.is_ok()) fail(sent.with_context(peer_text()));
  return sent.is_ok() ? sent : failure_;
}

void Connection::refuse(const Caller& caller, const Status& why) {
  // Whoever has gone needs no answer.
  (void)socket_->send(caller.route, encode(options_.epoch, Failure{why}));
}

Result<Message> Connection::next_message(std::string_view step, Deadline deadline,
                                         AbortSignal& abort) {
  while (true) {
    if (abort.raised()) return abort.cause();
    pump();
    if (!inbox_.empty()) {
      Message message = std::move(inbox_.front());
      inbox_.pop_front();
      return message;
    }
    if (!failure_.is_ok()) return failure_;
    CKPT_ASSIGN_OR_RETURN(const Wake wake, wait_for_any({poll_fd()}, deadline, &abort));
    if (wake == Wake::kExpired) {
      fail(deadline_exceeded(concat(peer_text(), " has not answered to ", step,
                                    " in time; is it stuck, or the timeout too short?")));
      return failure_;
    }
  }
}

void Connection::watch_peer() {
  peer_connection_ = connection_of(*peer_);
  auto watch = watch_process(peer_->process.pid);
  if (watch) {
    peer_watch_ = *std::move(watch);
    if (const Status added = poll_set_.add(peer_watch_.get()); !added.is_ok()) fail(added);
  } else if (watch.status().code() == StatusCode::kNotFound) {
    lose_peer("has ended");
  }
}

void Connection::start_abort(const Status& cause) {
  pump();
  abort_cause_ = cause;
  if (peer_) refuse(*peer_, cause);
  for (const Caller& caller : knocks_) {
    refuse(caller, cause);
    served_ = true;
  }
  knocks_.clear();
  pump();
}

WorkerWire::AbortProgress Connection::abort_step() {
  pump();
  inbox_.clear();
  failure_ = Status::ok();  // told already; only the connection's end is still of interest
  backlog_.clear();
  if (stopped_ && !stopped_->may_go_on()) {
    stopped_.reset();
    served_ = true;
  }
  return {peer_.has_value(), stopped_.has_value(), served_};
}

void Connection::cut() {
  if (stopped_) {  // it will not connect again: there is nothing to wait for
    stopped_.reset();
    served_ = true;
  }
  if (!peer_) return;
  served_ = true;  // it was told at start_abort(); only its going is not seen any more
  drop_peer();
}

void Connection::refuse_peer(const Status& why) {
  if (peer_) refuse(*peer_, why);
}

}  // namespace ckpt::native
