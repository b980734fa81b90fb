// The worker's side of the native wire: docs/wire-native.md.
#include "checkpoint_engine/receiver.h"

#include <array>
#include <utility>

#include "base/strings.h"
#include "worker/bucket_loader.h"
#include "worker/rank_link.h"
#include "worker/ring_mapping.h"

namespace ckpt {
namespace {

enum class State { kNoRing, kLoading, kReleased };

constexpr std::array<std::string_view, 3> kStateNames = {"waiting for the ring", "loading",
                                                         "released"};

class Receiver {
 public:
  Receiver(RankLink& link, Loader& loader, const ReceiverOptions& options)
      : link_(link), loader_(loader), options_(options) {}

  /// Answers the rank's messages until Finish has been answered.
  Result<ReceiveReport> run() {
    while (true) {
      CKPT_ASSIGN_OR_RETURN(const native::Body body, link_.receive());
      CKPT_RETURN_IF_ERROR(std::visit(*this, body));
      if (finished_) return report_;
    }
  }

  Status operator()(const native::OpenRing& message) {
    CKPT_RETURN_IF_ERROR(need(State::kNoRing, "OpenRing"));
    CKPT_ASSIGN_OR_RETURN(ring_, RingMapping::open(message.ring));
    state_ = State::kLoading;
    return link_.send(native::RingOpened{});
  }

  Status operator()(const native::Bucket& bucket) {
    CKPT_RETURN_IF_ERROR(need(State::kLoading, "Bucket"));
    const bool verify = options_.verify && link_.welcome().verify;
    CKPT_ASSIGN_OR_RETURN(const BucketAck ack,
                          load_bucket(bucket, ring_, loader_, verify,
                                      Deadline::after_seconds(options_.timeout_seconds)));
    report_.tensors += ack.tensors;
    report_.bytes += ack.bytes;
    report_.verified_tensors += ack.verified_tensors;
    report_.buckets += 1;
    report_.load_seconds += ack.load_seconds;
    return link_.send(native::BucketLoaded{ack});
  }

  Status operator()(const native::Release&) {
    CKPT_RETURN_IF_ERROR(need(State::kLoading, "Release"));
    const native::Welcome& due = link_.welcome();
    if (report_.tensors != due.total_tensors || report_.bytes != due.total_bytes) {
      return data_loss(concat("the rank released the ring after ", report_.tensors, " tensors (",
                              report_.bytes, " bytes) of ", due.total_tensors, " (",
                              due.total_bytes, ")"));
    }
    ring_.reset();
    state_ = State::kReleased;
    return link_.send(native::Released{});
  }

  Status operator()(const native::FinishPass&) {
    CKPT_RETURN_IF_ERROR(need(State::kReleased, "FinishPass"));
    CKPT_RETURN_IF_ERROR(loader_.finish());
    finished_ = true;
    return link_.send(native::PassFinished{});
  }

  /// What a rank never sends to a welcomed worker.
  template <typename Other>
  Status operator()(const Other& message) {
    return out_of_place(native::body_name(message));
  }

 private:
  Status out_of_place(std::string_view message) const {
    return protocol_error(concat("the rank sent ", message, " to a worker that is ",
                                 kStateNames[static_cast<std::size_t>(state_)]));
  }

  Status need(State state, std::string_view message) const {
    return state_ == state ? Status::ok() : out_of_place(message);
  }

  RankLink& link_;
  Loader& loader_;
  const ReceiverOptions& options_;
  State state_ = State::kNoRing;
  std::shared_ptr<RingMapping> ring_;
  ReceiveReport report_;
  bool finished_ = false;
};

}  // namespace

Status Loader::load(std::span<const TensorView> tensors) {
  return unsupported(concat("the engine gave no memory for tensor ",
                            quoted(tensors.front().info->name), " and has no load() of its own"));
}

Status Loader::finish() { return Status::ok(); }

Result<ReceiveReport> update_weights(const std::string& address, Loader& loader,
                                     const ReceiverOptions& options) {
  CKPT_ASSIGN_OR_RETURN(const auto link, RankLink::connect(address, options));
  // The ring is unmapped before the rank hears of a failure: it may free it then.
  auto report = Receiver(*link, loader, options).run();
  if (!report) return link->fail(report.status());
  return report;
}

}  // namespace ckpt
