// The rank's side of the native wire: docs/wire-native.md.
#include <unistd.h>

#include <deque>
#include <utility>

#include "base/strings.h"
#include "checkpoint/digest.h"
#include "worker/native_connection.h"
#include "worker/native_messages.h"
#include "worker/process_watch.h"
#include "worker/secret_proof.h"
#include "worker/wire.h"

namespace ckpt {
namespace {

/// Two buckets fit in the ring at their full size, smaller ones more often; more than a few in
/// flight hide nothing.
constexpr int kWindow = 4;

class NativeWire final : public WorkerWire {
 public:
  NativeWire(ChannelOptions options, std::unique_ptr<native::Connection> connection)
      : options_(std::move(options)), connection_(std::move(connection)) {}

  int poll_fd() const override { return connection_->poll_fd(); }
  bool knocking() override {
    connection_->pump();
    return connection_->anybody_knocks();
  }
  Result<std::optional<WorkerHello>> accept(Deadline deadline, AbortSignal& abort) override;
  Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) override;
  int window() const override { return kWindow; }
  Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) override;
  Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) override;
  Status release(Deadline deadline, AbortSignal& abort) override;
  Status finish(Deadline deadline, AbortSignal& abort) override;
  void start_abort(const Status& cause) override { connection_->start_abort(cause); }
  AbortProgress abort_step() override { return connection_->abort_step(); }
  void cut() override { connection_->cut(); }

 private:
  struct Expected {
    std::uint32_t bucket;
    std::uint64_t tensors;
    std::uint64_t bytes;
  };

  Status check_hello(const native::Caller& caller) const;
  Result<WorkerHello> prove_and_welcome(const native::Hello& hello, Deadline deadline,
                                        AbortSignal& abort);

  const ChannelOptions options_;
  std::unique_ptr<native::Connection> connection_;
  std::deque<Expected> announced_;
};

Status NativeWire::check_hello(const native::Caller& caller) const {
  const native::Hello& hello = caller.hello;
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
  if (caller.process.pid > 0) return check_same_user(caller.process, ::geteuid());
  return Status::ok();
}

Result<std::optional<WorkerHello>> NativeWire::accept(Deadline deadline, AbortSignal& abort) {
  connection_->pump();
  if (!connection_->serve_next()) return std::optional<WorkerHello>();
  announced_.clear();
  const native::Caller peer = *connection_->peer();
  if (Status fits = check_hello(peer); !fits.is_ok()) {
    fits = fits.with_context(connection_->peer_text()).on_rank(options_.rank);
    connection_->refuse_peer(fits);
    connection_->fail(fits);
    return fits;
  }
  connection_->watch_peer();
  auto hello = prove_and_welcome(peer.hello, deadline, abort);
  if (hello) return std::optional(*std::move(hello));
  if (hello.status().code() != StatusCode::kPeerLost) return hello.status();
  connection_->forget_failure();  // nothing has begun yet: another may come
  return std::optional<WorkerHello>();
}

Result<WorkerHello> NativeWire::prove_and_welcome(const native::Hello& hello, Deadline deadline,
                                                  AbortSignal& abort) {
  const int pid = connection_->peer_pid();
  const native::Bytes nonce = native::make_nonce();
  const native::Handshake handshake{hello.nonce, nonce, options_.epoch};
  CKPT_RETURN_IF_ERROR(connection_->send(
      native::Challenge{native::kProtocol, "checkpoint-engine " CKPT_VERSION, nonce,
                        native::prove_secret(options_.secret, native::Role::kRank, handshake),
                        !options_.secret.empty()}));
  CKPT_ASSIGN_OR_RETURN(const native::Proof proof,
                        connection_->expect<native::Proof>("the challenge", deadline, abort));
  if (!native::check_proof(proof.proof, options_.secret, native::Role::kWorker, handshake)) {
    const Status wrong = failed_precondition(concat(connection_->peer_text(),
                                                    " does not know the job's secret; give both "
                                                    "sides the same"))
                             .on_rank(options_.rank);
    connection_->refuse_peer(wrong);
    connection_->fail(wrong);
    return wrong;
  }
  CKPT_RETURN_IF_ERROR(
      connection_->send(native::Welcome{options_.rank, options_.verify, kDigestAlgorithm,
                                        options_.total_tensors, options_.total_bytes}));
  return WorkerHello{Wire::kNative, pid > 0 ? pid : hello.pid, hello.software};
}

Status NativeWire::open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) {
  const std::uint64_t needed =
      ring.kind == DeviceKind::kCuda ? native::kCanOpenCudaRings : native::kCanOpenHostRings;
  const auto& peer = connection_->peer();
  if (peer && (peer->hello.capabilities & needed) == 0) {
    connection_->fail(unsupported(concat(connection_->peer_text(), " (", peer->hello.software,
                                         ") cannot open a ring in ",
                                         ring.kind == DeviceKind::kCuda ? "GPU" : "host",
                                         " memory; it needs a build with that device")));
  }
  CKPT_RETURN_IF_ERROR(connection_->send(native::OpenRing{ring}));
  return connection_->expect<native::RingOpened>("OpenRing", deadline, abort).status();
}

Status NativeWire::announce(std::uint32_t bucket, std::span<const RingEntry> entries) {
  connection_->pump();
  CKPT_RETURN_IF_ERROR(connection_->send(native::encode_bucket(options_.epoch, bucket, entries)));
  Expected expected{bucket, entries.size(), 0};
  for (const RingEntry& entry : entries) expected.bytes += entry.bytes;
  announced_.push_back(expected);
  return Status::ok();
}

Result<BucketAck> NativeWire::wait_ack(Deadline deadline, AbortSignal& abort) {
  if (announced_.empty()) return failed_precondition("wait_ack without an announced bucket");
  const Expected expected = announced_.front();
  CKPT_ASSIGN_OR_RETURN(const native::BucketLoaded loaded,
                        connection_->expect<native::BucketLoaded>(
                            concat("bucket ", expected.bucket), deadline, abort));
  announced_.pop_front();
  const BucketAck& ack = loaded.ack;
  if (ack.bucket != expected.bucket || ack.tensors != expected.tensors ||
      ack.bytes != expected.bytes) {
    connection_->fail(
        protocol_error(concat(connection_->peer_text(), " acknowledged bucket ", ack.bucket, " (",
                              ack.tensors, " tensors, ", ack.bytes, " bytes), announced was ",
                              expected.bucket, " (", expected.tensors, ", ", expected.bytes, ")")));
    return connection_->failure();
  }
  return ack;
}

Status NativeWire::release(Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(connection_->send(native::Release{}));
  return connection_->expect<native::Released>("Release", deadline, abort).status();
}

Status NativeWire::finish(Deadline deadline, AbortSignal& abort) {
  connection_->let_peer_knock_again();
  CKPT_RETURN_IF_ERROR(connection_->send(native::FinishPass{}));
  CKPT_RETURN_IF_ERROR(
      connection_->expect<native::PassFinished>("FinishPass", deadline, abort).status());
  connection_->part();
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<WorkerWire>> bind_native_wire(const ChannelOptions& options,
                                                     const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(auto connection, native::Connection::bind(options, address));
  return std::unique_ptr<WorkerWire>(std::make_unique<NativeWire>(options, std::move(connection)));
}

}  // namespace ckpt
