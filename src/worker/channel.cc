#include "worker/channel.h"

#include <array>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "worker/channel_address.h"
#include "worker/closer.h"
#include "worker/wait.h"
#include "worker/wire.h"

namespace ckpt {
namespace {

enum class State { kBound, kConnected, kRingOpen, kReleased, kFailed };

constexpr std::array<std::string_view, 5> kStateNames = {"bound", "connected", "ring open",
                                                         "released", "failed"};

std::string_view name(State state) { return kStateNames[static_cast<std::size_t>(state)]; }

/// Keeps the table of states; the wires do the talking.
class TwoWireChannel final : public WorkerChannel {
 public:
  TwoWireChannel(ChannelOptions options, std::string address, PollSet poll_set)
      : options_(std::move(options)),
        address_(std::move(address)),
        poll_set_(std::move(poll_set)) {}

  Status add(std::unique_ptr<WorkerWire> wire) {
    CKPT_RETURN_IF_ERROR(poll_set_.add(wire->poll_fd()));
    wires_.push_back(std::move(wire));
    return Status::ok();
  }

  const std::string& address() const override { return address_; }
  int poll_fd() const override { return poll_set_.fd(); }
  int window() const override { return current_ != nullptr ? current_->window() : 1; }

  Result<WorkerHello> accept(Deadline deadline, AbortSignal& abort) override {
    CKPT_RETURN_IF_ERROR(need(State::kBound, "accept"));
    while (true) {
      if (abort.raised()) return fail(abort.cause());
      for (const auto& wire : wires_) {
        if (!wire->knocking()) continue;
        auto hello = wire->accept(deadline, abort);
        if (!hello) return fail(hello.status());
        if (*hello) return begin_pass(wire.get(), **std::move(hello));
      }
      auto wake = wait_for_any({poll_fd()}, deadline, &abort);
      if (!wake) return fail(wake.status());
      if (*wake == Wake::kExpired) return fail(nobody_came());
    }
  }

  bool connected_again() override {
    if (state_ != State::kBound) return false;
    for (const auto& wire : wires_) {
      if (wire->knocking()) return true;
    }
    return false;
  }

  Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) override {
    CKPT_RETURN_IF_ERROR(need(State::kConnected, "open_ring"));
    ring_on_gpu_ = ring.kind == DeviceKind::kCuda;
    return reach(State::kRingOpen, current_->open_ring(ring, deadline, abort));
  }

  Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) override {
    CKPT_RETURN_IF_ERROR(need(State::kRingOpen, "announce"));
    if (unacknowledged_ >= current_->window()) {
      return failed_precondition(concat("bucket ", bucket, " announced while ", unacknowledged_,
                                        " are not acknowledged; the window is ",
                                        current_->window()));
    }
    CKPT_RETURN_IF_ERROR(reach(State::kRingOpen, current_->announce(bucket, entries)));
    ++unacknowledged_;
    return Status::ok();
  }

  Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) override {
    CKPT_RETURN_IF_ERROR(need(State::kRingOpen, "wait_ack"));
    if (unacknowledged_ == 0) return failed_precondition("wait_ack without an announced bucket");
    auto ack = current_->wait_ack(deadline, abort);
    if (!ack) return fail(ack.status());
    --unacknowledged_;
    return ack;
  }

  Status release(Deadline deadline, AbortSignal& abort) override {
    CKPT_RETURN_IF_ERROR(need(State::kRingOpen, "release"));
    if (unacknowledged_ > 0) {
      return failed_precondition(
          concat("release while ", unacknowledged_, " buckets are not acknowledged"));
    }
    return reach(State::kReleased, current_->release(deadline, abort));
  }

  Status finish(Deadline deadline, AbortSignal& abort) override {
    CKPT_RETURN_IF_ERROR(need(State::kReleased, "finish"));
    CKPT_RETURN_IF_ERROR(reach(State::kBound, current_->finish(deadline, abort)));
    return end_pass();
  }

  void give_up(const Status& cause, Deadline deadline, std::shared_ptr<void> ring) {
    for (const auto& wire : wires_) wire->start_abort(cause);
    hand_to_closer({options_.job, options_.rank, std::move(wires_), std::move(ring), ring_on_gpu_,
                    deadline, options_.late_worker_seconds});
  }

 private:
  Status need(State state, std::string_view call) const {
    if (state_ == state) return Status::ok();
    if (state_ == State::kFailed) return failure_;
    return failed_precondition(concat(call, " on a worker channel that is ", name(state_),
                                      "; it has to be ", name(state)));
  }

  Status fail(Status cause) {
    state_ = State::kFailed;
    failure_ = std::move(cause);
    return failure_;
  }

  Status reach(State state, Status outcome) {
    if (!outcome.is_ok()) return fail(std::move(outcome));
    state_ = state;
    return Status::ok();
  }

  Status nobody_came() const {
    return deadline_exceeded(
        concat("no worker of rank ", options_.rank, " has connected to ", address_,
               "; was its engine called with this address, and does it run on this host, in this "
               "network namespace?"));
  }

  /// Who knocks at the other wire now waits for the next pass, and must not keep poll_fd() ready.
  WorkerHello begin_pass(WorkerWire* wire, WorkerHello hello) {
    for (const auto& other : wires_) {
      if (other.get() != wire) poll_set_.remove(other->poll_fd());
    }
    current_ = wire;
    unacknowledged_ = 0;
    state_ = State::kConnected;
    return hello;
  }

  Status end_pass() {
    for (const auto& other : wires_) {
      if (other.get() == current_) continue;
      if (const Status added = poll_set_.add(other->poll_fd()); !added.is_ok()) return fail(added);
    }
    current_ = nullptr;
    return Status::ok();
  }

  const ChannelOptions options_;
  const std::string address_;
  PollSet poll_set_;
  std::vector<std::unique_ptr<WorkerWire>> wires_;
  WorkerWire* current_ = nullptr;  ///< of this pass; one of wires_
  State state_ = State::kBound;
  Status failure_;
  int unacknowledged_ = 0;
  bool ring_on_gpu_ = false;
};

}  // namespace

Result<std::unique_ptr<WorkerChannel>> WorkerChannel::bind(ChannelOptions options) {
  if (options.rank < 0) return invalid_argument(concat("rank ", options.rank));
  const std::string address = channel_address(options.job, options.rank, options.epoch);
  CKPT_ASSIGN_OR_RETURN(PollSet poll_set, PollSet::create());
  auto channel = std::make_unique<TwoWireChannel>(options, address, std::move(poll_set));
  CKPT_ASSIGN_OR_RETURN(auto native, bind_native_wire(options, address));
  CKPT_RETURN_IF_ERROR(channel->add(std::move(native)));
  CKPT_ASSIGN_OR_RETURN(auto stock, bind_stock_wire(options, address));
  CKPT_RETURN_IF_ERROR(channel->add(std::move(stock)));
  return std::unique_ptr<WorkerChannel>(std::move(channel));
}

void WorkerChannel::abort(std::unique_ptr<WorkerChannel> channel, const Status& cause,
                          Deadline deadline, std::shared_ptr<void> ring) {
  // bind() is the only source of channels.
  static_cast<TwoWireChannel&>(*channel).give_up(cause, deadline, std::move(ring));
}

}  // namespace ckpt
