// The rank's side of the native wire: docs/wire-native.md.
#include <unistd.h>

#include <deque>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "worker/channel_address.h"
#include "worker/native_messages.h"
#include "worker/process_watch.h"
#include "worker/secret_proof.h"
#include "worker/wait.h"
#include "worker/wire.h"
#include "worker/zmq_socket.h"

namespace ckpt {
namespace {

using native::Body;
using native::Bytes;

/// Two buckets fit in the ring at their full size, smaller ones more often; more than a few in
/// flight hide nothing.
constexpr int kWindow = 4;
/// For a refusal that was sent last; a living peer's socket takes it at once.
constexpr int kLingerMs = 500;

/// A connection that has said hello.
struct Caller {
  std::string route;
  int connection = -1;
  PeerProcess process;
  native::Hello hello;
};

class NativeWire final : public WorkerWire {
 public:
  NativeWire(ChannelOptions options, std::unique_ptr<ZmqSocket> socket, PollSet poll_set)
      : options_(std::move(options)), socket_(std::move(socket)), poll_set_(std::move(poll_set)) {}
  ~NativeWire() override { socket_->close(kLingerMs); }

  Status open() {
    CKPT_RETURN_IF_ERROR(poll_set_.add(socket_->fd()));
    CKPT_RETURN_IF_ERROR(poll_set_.add(socket_->event_fd()));
    return poll_set_.add(backlog_.fd());
  }

  int poll_fd() const override { return poll_set_.fd(); }
  bool knocking() override {
    pump();
    return !knocks_.empty();
  }
  Result<std::optional<WorkerHello>> accept(Deadline deadline, AbortSignal& abort) override;
  Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) override;
  int window() const override { return kWindow; }
  Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) override;
  Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) override;
  Status release(Deadline deadline, AbortSignal& abort) override;
  Status finish(Deadline deadline, AbortSignal& abort) override;
  void start_abort(const Status& cause) override;
  AbortProgress abort_step() override;
  void cut() override {
    if (!peer_) return;
    served_ = true;  // it was told at start_abort(); only its going is not seen any more
    peer_.reset();
  }

 private:
  struct Expected {
    std::uint32_t bucket;
    std::uint64_t tensors;
    std::uint64_t bytes;
  };

  void pump();
  void drain();
  void dispatch(ZmqMessage message);
  void take_from_peer(native::Message message);
  void take_hello(Caller caller);
  void lose_peer(std::string_view how);
  void fail(Status cause);

  Status check_hello(const native::Hello& hello) const;
  Result<WorkerHello> prove_and_welcome(Deadline deadline, AbortSignal& abort);
  void watch_peer();
  Status send(const Body& body) { return send(native::encode(options_.epoch, body)); }
  Status send(const Bytes& message);
  void refuse(const Caller& caller, const Status& why);
  /// Waits for the peer's next message, which must be a T. `step` names what it answers.
  template <typename T>
  Result<T> expect(std::string_view step, Deadline deadline, AbortSignal& abort);
  std::string peer_text() const;

  const ChannelOptions options_;
  std::unique_ptr<ZmqSocket> socket_;
  PollSet poll_set_;
  EventFd backlog_;  ///< set while something that has been read from the socket waits for a call
  UniqueFd peer_watch_;
  std::optional<Caller> peer_;
  bool finishing_ = false;  ///< the worker's next pass may knock before its last answer is read
  bool served_ = false;
  Status failure_;  ///< first cause that ended this pass
  Status abort_cause_;
  std::deque<native::Message> inbox_;
  std::deque<Caller> knocks_;
  std::deque<Expected> announced_;
};

std::string NativeWire::peer_text() const {
  if (!peer_) return concat("the worker of rank ", options_.rank);
  return concat("the worker of rank ", options_.rank, " (pid ",
                peer_->process.pid > 0 ? peer_->process.pid : peer_->hello.pid, ")");
}

void NativeWire::fail(Status cause) {
  if (failure_.is_ok()) failure_ = std::move(cause);
}

void NativeWire::lose_peer(std::string_view how) {
  fail(peer_lost(concat(peer_text(), " ", how, "; see that process's log")));
  peer_watch_.reset();
  served_ = true;
  peer_.reset();
}

/// Reads everything that libzmq holds: its descriptors only report what comes after the last read.
void NativeWire::pump() {
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

void NativeWire::drain() {
  while (true) {
    auto message = socket_->receive();
    if (!message) return fail(message.status().with_context(peer_text()));
    if (!*message) return;
    dispatch(**std::move(message));
  }
}

void NativeWire::dispatch(ZmqMessage raw) {
  const bool from_peer = peer_ && raw.route == peer_->route;
  auto message = native::decode(raw.content);
  if (!message) {
    if (from_peer) return fail(message.status().with_context(peer_text()));
    return log_debug("native wire of rank ", options_.rank,
                     ": dropped a stranger's message: ", message.status().message());
  }
  if (from_peer) return take_from_peer(*std::move(message));
  if (auto* hello = std::get_if<native::Hello>(&message->body)) {
    return take_hello(
        {raw.route, raw.connection, raw.sender.value_or(PeerProcess{}), std::move(*hello)});
  }
}

void NativeWire::take_from_peer(native::Message message) {
  if (message.epoch != options_.epoch) return;
  const auto* failure = std::get_if<native::Failure>(&message.body);
  if (failure == nullptr) return inbox_.push_back(std::move(message));
  const std::string text = concat(peer_text(), ": ", failure->cause.message());
  // Damaged weights keep their own kind, whoever found them; anything else is the worker's affair.
  fail(failure->cause.code() == StatusCode::kDataLoss ? data_loss(text) : peer_error(text));
}

void NativeWire::take_hello(Caller caller) {
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

Status NativeWire::send(const Bytes& message) {
  if (!failure_.is_ok()) return failure_;
  if (!peer_) return internal_error("send without a worker");
  const Status sent = socket_->send(peer_->route, message);
  pump();  // sending may have consumed the descriptor's news
  if (sent.code() == StatusCode::kPeerLost && failure_.is_ok()) lose_peer("closed its connection");
  if (!sent.is_ok() && failure_.is_ok()) fail(sent.with_context(peer_text()));
  return sent.is_ok() ? sent : failure_;
}

void NativeWire::refuse(const Caller& caller, const Status& why) {
  // Whoever has gone needs no answer.
  (void)socket_->send(caller.route, native::encode(options_.epoch, native::Failure{why}));
}

template <typename T>
Result<T> NativeWire::expect(std::string_view step, Deadline deadline, AbortSignal& abort) {
  while (true) {
    if (abort.raised()) return abort.cause();
    pump();
    if (!inbox_.empty()) {
      native::Message message = std::move(inbox_.front());
      inbox_.pop_front();
      if (auto* wanted = std::get_if<T>(&message.body)) return std::move(*wanted);
      fail(protocol_error(
          concat(peer_text(), " answered ", native::body_name(message.body), " to ", step)));
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

Status NativeWire::check_hello(const native::Hello& hello) const {
  if (hello.protocol != native::kProtocol) {
    return unsupported(concat("the rank (checkpoint-engine " CKPT_VERSION
                              ") speaks native protocol ",
                              native::kProtocol, ", the worker (", hello.software, ") speaks ",
                              hello.protocol, "; install the same version on both sides"));
  }
  if (options_.verify && hello.digest_algorithm != kDigestAlgorithm) {
    return unsupported(concat("the rank's digests are of algorithm ", kDigestAlgorithm,
                              ", the worker (", hello.software, ") knows ", hello.digest_algorithm,
                              "; install the same version on both sides, or do not verify"));
  }
  if (hello.has_secret == options_.secret.empty()) {
    return failed_precondition(concat(
        "the job has ",
        options_.secret.empty() ? "no secret, the worker has one" : "a secret, the worker has none",
        "; give both the same"));
  }
  return Status::ok();
}

Result<std::optional<WorkerHello>> NativeWire::accept(Deadline deadline, AbortSignal& abort) {
  pump();
  if (knocks_.empty()) return std::optional<WorkerHello>();
  peer_ = std::move(knocks_.front());
  knocks_.pop_front();
  inbox_.clear();
  announced_.clear();
  failure_ = Status::ok();
  finishing_ = false;
  Status fits = check_hello(peer_->hello);
  if (fits.is_ok() && peer_->process.pid > 0) {
    fits = check_same_user(peer_->process, ::geteuid());
  }
  if (!fits.is_ok()) {
    fits = fits.with_context(peer_text()).on_rank(options_.rank);
    refuse(*peer_, fits);
    fail(fits);
    return fits;
  }
  watch_peer();
  auto hello = prove_and_welcome(deadline, abort);
  if (hello) return std::optional(*std::move(hello));
  if (hello.status().code() != StatusCode::kPeerLost) return hello.status();
  failure_ = Status::ok();  // nothing has begun yet: another may come
  return std::optional<WorkerHello>();
}

void NativeWire::watch_peer() {
  auto watch = watch_process(peer_->process.pid);
  if (watch) {
    peer_watch_ = *std::move(watch);
    if (const Status added = poll_set_.add(peer_watch_.get()); !added.is_ok()) fail(added);
  } else if (watch.status().code() == StatusCode::kNotFound) {
    lose_peer("has ended");
  }
}

Result<WorkerHello> NativeWire::prove_and_welcome(Deadline deadline, AbortSignal& abort) {
  if (!failure_.is_ok()) return failure_;
  const native::Hello hello = peer_->hello;
  const Bytes nonce = native::make_nonce();
  const native::Handshake handshake{hello.nonce, nonce, options_.epoch};
  CKPT_RETURN_IF_ERROR(
      send(native::Challenge{native::kProtocol, "checkpoint-engine " CKPT_VERSION, nonce,
                             native::prove_secret(options_.secret, native::Role::kRank, handshake),
                             !options_.secret.empty()}));
  CKPT_ASSIGN_OR_RETURN(const native::Proof proof,
                        expect<native::Proof>("the challenge", deadline, abort));
  if (!native::check_proof(proof.proof, options_.secret, native::Role::kWorker, handshake)) {
    const Status wrong =
        failed_precondition(
            concat(peer_text(), " does not know the job's secret; give both sides the same"))
            .on_rank(options_.rank);
    if (peer_) refuse(*peer_, wrong);
    fail(wrong);
    return wrong;
  }
  CKPT_RETURN_IF_ERROR(send(native::Welcome{options_.rank, options_.verify, kDigestAlgorithm,
                                            options_.total_tensors, options_.total_bytes}));
  return WorkerHello{Wire::kNative,
                     peer_ && peer_->process.pid > 0 ? peer_->process.pid : hello.pid,
                     hello.software};
}

Status NativeWire::open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) {
  const std::uint64_t needed =
      ring.kind == DeviceKind::kCuda ? native::kCanOpenCudaRings : native::kCanOpenHostRings;
  if (peer_ && (peer_->hello.capabilities & needed) == 0) {
    fail(unsupported(concat(peer_text(), " (", peer_->hello.software, ") cannot open a ring in ",
                            ring.kind == DeviceKind::kCuda ? "GPU" : "host",
                            " memory; it needs a build with that device")));
  }
  CKPT_RETURN_IF_ERROR(send(native::OpenRing{ring}));
  return expect<native::RingOpened>("OpenRing", deadline, abort).status();
}

Status NativeWire::announce(std::uint32_t bucket, std::span<const RingEntry> entries) {
  pump();
  CKPT_RETURN_IF_ERROR(send(native::encode_bucket(options_.epoch, bucket, entries)));
  Expected expected{bucket, entries.size(), 0};
  for (const RingEntry& entry : entries) expected.bytes += entry.bytes;
  announced_.push_back(expected);
  return Status::ok();
}

Result<BucketAck> NativeWire::wait_ack(Deadline deadline, AbortSignal& abort) {
  if (announced_.empty()) return failed_precondition("wait_ack without an announced bucket");
  const Expected expected = announced_.front();
  CKPT_ASSIGN_OR_RETURN(
      const native::BucketLoaded loaded,
      expect<native::BucketLoaded>(concat("bucket ", expected.bucket), deadline, abort));
  announced_.pop_front();
  const BucketAck& ack = loaded.ack;
  if (ack.bucket != expected.bucket || ack.tensors != expected.tensors ||
      ack.bytes != expected.bytes) {
    fail(protocol_error(concat(peer_text(), " acknowledged bucket ", ack.bucket, " (", ack.tensors,
                               " tensors, ", ack.bytes, " bytes), announced was ", expected.bucket,
                               " (", expected.tensors, ", ", expected.bytes, ")")));
    return failure_;
  }
  return ack;
}

Status NativeWire::release(Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(send(native::Release{}));
  return expect<native::Released>("Release", deadline, abort).status();
}

Status NativeWire::finish(Deadline deadline, AbortSignal& abort) {
  finishing_ = true;
  CKPT_RETURN_IF_ERROR(send(native::FinishPass{}));
  CKPT_RETURN_IF_ERROR(expect<native::PassFinished>("FinishPass", deadline, abort).status());
  peer_watch_.reset();
  peer_.reset();
  pump();
  return Status::ok();
}

void NativeWire::start_abort(const Status& cause) {
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

WorkerWire::AbortProgress NativeWire::abort_step() {
  pump();
  inbox_.clear();
  failure_ = Status::ok();  // told already; only the connection's end is still of interest
  backlog_.clear();
  return {peer_.has_value(), served_};
}

}  // namespace

Result<std::unique_ptr<WorkerWire>> bind_native_wire(const ChannelOptions& options,
                                                     const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(const std::string native, native_address(address));
  ZmqOptions zmq;
  zmq.heartbeat_timeout_seconds = options.heartbeat_timeout_seconds;
  CKPT_ASSIGN_OR_RETURN(auto socket, ZmqSocket::bind(native, zmq));
  CKPT_ASSIGN_OR_RETURN(PollSet poll_set, PollSet::create());
  auto wire = std::make_unique<NativeWire>(options, std::move(socket), std::move(poll_set));
  CKPT_RETURN_IF_ERROR(wire->open());
  return std::unique_ptr<WorkerWire>(std::move(wire));
}

}  // namespace ckpt
