#include "worker/rank_link.h"

#include <unistd.h>

#include <utility>

#include "base/strings.h"
#include "checkpoint/digest.h"
#include "worker/channel_address.h"
#include "worker/process_watch.h"
#include "worker/secret_proof.h"
#include "worker/wait.h"

namespace ckpt {
namespace {

/// For the last message: a living rank's socket takes it at once.
constexpr int kLingerMs = 2000;
constexpr std::chrono::milliseconds kAskInterval{100};
constexpr const char* kSoftware = "checkpoint-engine " CKPT_VERSION;

}  // namespace

RankLink::RankLink(std::string address, ReceiverOptions options, std::unique_ptr<ZmqSocket> socket)
    : address_(std::move(address)), options_(std::move(options)), socket_(std::move(socket)) {}

RankLink::~RankLink() { socket_->close(rank_gone_ ? 0 : kLingerMs); }

Result<std::unique_ptr<RankLink>> RankLink::connect(const std::string& address,
                                                    const ReceiverOptions& options) {
  CKPT_ASSIGN_OR_RETURN(const std::string native, native_address(address));
  ZmqOptions zmq;
  zmq.type = ZmqOptions::Type::kDealer;
  zmq.heartbeat_timeout_seconds = options.heartbeat_timeout_seconds;
  CKPT_ASSIGN_OR_RETURN(auto socket, ZmqSocket::connect(native, zmq));
  std::unique_ptr<RankLink> link(new RankLink(address, options, std::move(socket)));
  if (Status shaken = link->shake_hands(); !shaken.is_ok()) return link->fail(std::move(shaken));
  return link;
}

Status RankLink::lost(std::string_view how) {
  rank_gone_ = true;
  return peer_lost(concat("the rank at ", address_,
                          rank_pid_ > 0 ? concat(" (pid ", rank_pid_, ")") : std::string(), " ",
                          how, "; the weights are incomplete until an update succeeds"));
}

Status RankLink::shake_hands() {
  const native::Bytes nonce = native::make_nonce();
  CKPT_RETURN_IF_ERROR(send(native::Hello{
      native::kProtocol, kSoftware, ::getpid(),
      native::kCanOpenHostRings | (cuda_device_count() > 0 ? native::kCanOpenCudaRings : 0),
      kDigestAlgorithm, nonce, !options_.secret.empty()}));
  CKPT_ASSIGN_OR_RETURN(const native::Challenge challenge, expect<native::Challenge>());
  CKPT_RETURN_IF_ERROR(check_challenge(challenge, nonce));
  const native::Handshake handshake{nonce, challenge.nonce, epoch_};
  CKPT_RETURN_IF_ERROR(
      send(native::Proof{native::prove_secret(options_.secret, native::Role::kWorker, handshake)}));
  CKPT_ASSIGN_OR_RETURN(welcome_, expect<native::Welcome>());
  if (options_.verify && welcome_.verify && welcome_.digest_algorithm != kDigestAlgorithm) {
    return unsupported(concat("the rank's digests are of algorithm ", welcome_.digest_algorithm,
                              ", this worker knows ", kDigestAlgorithm,
                              "; install the same version on both sides, or do not verify"));
  }
  return Status::ok();
}

Status RankLink::check_challenge(const native::Challenge& challenge,
                                 const native::Bytes& nonce) const {
  if (challenge.protocol != native::kProtocol) {
    return unsupported(concat("the worker (", kSoftware, ") speaks native protocol ",
                              native::kProtocol, ", the rank (", challenge.software, ") speaks ",
                              challenge.protocol, "; install the same version on both sides"));
  }
  const native::Handshake handshake{nonce, challenge.nonce, epoch_};
  if (!native::check_proof(challenge.proof, options_.secret, native::Role::kRank, handshake)) {
    return failed_precondition(concat("the rank at ", address_,
                                      " does not know this worker's job secret; give both the "
                                      "same"));
  }
  return Status::ok();
}

template <typename T>
Result<T> RankLink::expect() {
  CKPT_ASSIGN_OR_RETURN(native::Body body, receive());
  if (auto* wanted = std::get_if<T>(&body)) return std::move(*wanted);
  return protocol_error(concat("the rank at ", address_, " sent ", native::body_name(body),
                               " where ", native::body_name(T{}), " was due"));
}

Status RankLink::send(const native::Body& body) {
  const Status sent = socket_->send({}, native::encode(epoch_, body));
  // A lost connection shows in receive(), after what the rank said last.
  return sent.code() == StatusCode::kPeerLost ? Status::ok() : sent;
}

Status RankLink::fail(Status cause) {
  if (failed_by_rank_ || rank_gone_) return cause;
  // Should it go now, it needs no answer.
  (void)send(native::Failure{cause});
  return cause;
}

Status RankLink::note_sender(const ZmqMessage& message) {
  if (sender_known_ || !message.sender) return Status::ok();
  sender_known_ = true;
  CKPT_RETURN_IF_ERROR(check_same_user(*message.sender, ::geteuid()));
  rank_pid_ = message.sender->pid;
  auto watch = watch_process(rank_pid_);
  if (watch) rank_watch_ = *std::move(watch);
  if (watch.status().code() == StatusCode::kNotFound) return lost("has ended");
  return Status::ok();
}

/// What has come, without a wait; messages of another epoch are dropped.
Result<std::optional<native::Body>> RankLink::next() {
  while (true) {
    CKPT_ASSIGN_OR_RETURN(const std::optional<ZmqMessage> raw, socket_->receive());
    if (!raw) return std::optional<native::Body>();
    CKPT_RETURN_IF_ERROR(note_sender(*raw));
    auto message = native::decode(raw->content);
    if (!message) return message.status().with_context(concat("the rank at ", address_));
    if (const auto* failure = std::get_if<native::Failure>(&message->body)) {
      if (epoch_ != 0 && message->epoch != epoch_) continue;
      failed_by_rank_ = true;
      return failure->cause;
    }
    // The challenge is the first to tell the epoch.
    if (std::holds_alternative<native::Challenge>(message->body)) epoch_ = message->epoch;
    if (message->epoch == epoch_) return std::optional(std::move(message->body));
  }
}

Result<native::Body> RankLink::receive() {
  const Deadline deadline = Deadline::after_seconds(options_.timeout_seconds);
  while (true) {
    if (options_.while_waiting) CKPT_RETURN_IF_ERROR(options_.while_waiting());
    CKPT_ASSIGN_OR_RETURN(auto body, next());
    if (body) return *std::move(body);
    for (const ZmqEvent& event : socket_->events()) {
      if (event.kind == ZmqEvent::Kind::kRefused) {
        rank_gone_ = true;
        return unavailable(concat("nobody listens at ", address_,
                                  ": the update is over or its rank has gone, or it runs on "
                                  "another host or in another network namespace"));
      }
      if (event.kind != ZmqEvent::Kind::kDisconnected) continue;
      CKPT_ASSIGN_OR_RETURN(auto last, next());  // what it said before it went
      if (last) return *std::move(last);
      return lost("closed the connection or stopped answering");
    }
    if (rank_watch_ && readable_now(rank_watch_.get())) {
      CKPT_ASSIGN_OR_RETURN(auto last, next());
      if (last) return *std::move(last);
      return lost("has ended");
    }
    const Deadline wake_up =
        options_.while_waiting ? deadline.earlier(Deadline::after(kAskInterval)) : deadline;
    CKPT_ASSIGN_OR_RETURN(
        const Wake wake,
        wait_for_any({socket_->fd(), socket_->event_fd(), rank_watch_.get()}, wake_up, nullptr));
    if (wake == Wake::kExpired && deadline.expired()) {
      return deadline_exceeded(concat("no message from the rank at ", address_, " for ",
                                      options_.timeout_seconds, " s"));
    }
  }
}

}  // namespace ckpt
