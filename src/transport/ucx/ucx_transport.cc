#include "transport/ucx/ucx_transport.h"

#include <array>
#include <cstring>
#include <random>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/descriptor.h"
#include "transport/read_plan.h"
#include "transport/ucx/context.h"
#include "transport/ucx/owner.h"
#include "transport/ucx/progress.h"
#include "transport/ucx/reader.h"

namespace ckpt {
namespace {

using ucx::PeerState;
using ucx::ReadState;

/// How long a cancelled read may take to finish what is in flight before its connection is cut.
constexpr std::chrono::seconds kReleasePatience{1};
constexpr std::chrono::seconds kRegionPatience{5};

std::uint64_t random_connection() {
  static thread_local std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

Status closed_error() { return failed_precondition("this transport is closed"); }

/// Everything behind the handles; lives until the last of them is gone.
struct Engine {
  ucx::Identity identity;
  TransportCounters counters;
  std::shared_ptr<ucx::Context> context;
  ucx::Destinations destinations;
  std::unique_ptr<ucx::Owner> owner;
  std::unique_ptr<ucx::Reader> reader;
  std::unique_ptr<ucx::Progress> progress;  // ends first: its tasks use the others
  std::atomic<bool> closed{false};

  ~Engine() { close(); }

  void close() {
    closed.store(true);
    if (!progress) return;
    progress->run([this] {
      reader->close_all();
      owner->close();
    });
    progress->stop();
  }

  void on_message(ucx::Message message) {
    if (std::holds_alternative<ucx::Refusal>(message.body) ||
        std::holds_alternative<ucx::Served>(message.body)) {
      reader->on_message(message);
    } else {
      owner->on_message(std::move(message));
    }
  }
};

class UcxRegion final : public MemoryRegion {
 public:
  UcxRegion(std::shared_ptr<Engine> engine, std::uint64_t id, std::uint64_t bytes)
      : engine_(std::move(engine)), id_(id), bytes_(bytes) {}
  ~UcxRegion() override { UcxRegion::close(Deadline::after(kRegionPatience)); }

  std::uint64_t id() const override { return id_; }
  std::uint64_t bytes() const override { return bytes_; }
  void close(Deadline deadline) override { engine_->owner->close_region(id_, deadline); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::uint64_t id_, bytes_;
};

class UcxDestination final : public Destination {
 public:
  UcxDestination(std::shared_ptr<Engine> engine, const std::byte* data)
      : engine_(std::move(engine)), data_(data) {}
  ~UcxDestination() override { engine_->destinations.remove(data_); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::byte* const data_;
};

class UcxPeer final : public Peer {
 public:
  UcxPeer(std::shared_ptr<Engine> engine, std::shared_ptr<PeerState> state)
      : engine_(std::move(engine)), state_(std::move(state)) {}
  ~UcxPeer() override { UcxPeer::close(); }

  const std::string& label() const override { return state_->label; }
  const std::string& instance() const override { return state_->descriptor.instance; }
  std::span<const RemoteRegion> regions() const override { return state_->regions; }
  Status status() const override { return state_->status(); }
  void close() override {
    engine_->progress->post(
        [engine = engine_.get(), state = state_] { engine->reader->close(state); });
  }
  const std::shared_ptr<PeerState>& state() const { return state_; }
  const Engine* engine() const { return engine_.get(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<PeerState> state_;
};

class UcxRead final : public Read {
 public:
  UcxRead(std::shared_ptr<Engine> engine, std::shared_ptr<ReadState> state)
      : engine_(std::move(engine)), state_(std::move(state)) {}

  ~UcxRead() override {
    UcxRead::cancel(aborted("the read was given up"));
    if (state_->wait_released(Deadline::after(kReleasePatience))) return;
    engine_->progress->post([engine = engine_.get(), peer = state_->peer] {
      engine->reader->lose(peer, peer_lost(concat("lost ", peer->label,
                                                  ": it did not end a read that was cancelled")));
    });
    while (!state_->wait_released(Deadline::after(kReleasePatience))) {
      log_error("transport: waiting for ucx to end a read from ", state_->peer->label,
                " whose connection was cut");
    }
  }

  bool done() const override { return state_->done(); }
  bool destination_released() const override { return state_->released(); }
  std::uint64_t bytes() const override { return state_->bytes; }
  std::uint64_t bytes_done() const override { return state_->bytes_done(); }

  void cancel(Status cause) override {
    if (!state_->finish(std::move(cause))) return;
    engine_->progress->post(
        [engine = engine_.get(), state = state_] { engine->reader->retire(state); });
  }

  Status wait(Deadline deadline, AbortSignal* abort) override {
    const int key = abort ? abort->subscribe([this](const Status& cause) { cancel(cause); }) : 0;
    std::optional<Status> outcome = state_->wait_done(deadline);
    if (abort) abort->unsubscribe(key);
    if (!outcome) {
      cancel(deadline_exceeded(concat("waited in vain for ", format_bytes(state_->bytes), " from ",
                                      state_->peer->label, " (", format_bytes(state_->bytes_done()),
                                      " had arrived)")));
    }
    return state_->outcome();
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<ReadState> state_;
};

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~UcxTransport() override { UcxTransport::close(); }

  std::string_view name() const override { return "ucx"; }
  const std::string& instance() const override { return engine_->identity.instance; }

  Result<std::unique_ptr<MemoryRegion>> register_memory(void* data, std::uint64_t bytes) override {
    if (engine_->closed.load()) return closed_error();
    if (data == nullptr && bytes > 0) return invalid_argument("no memory given to register");
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t id, engine_->owner->add_region(data, bytes));
    return std::unique_ptr<MemoryRegion>(std::make_unique<UcxRegion>(engine_, id, bytes));
  }

  Status can_read_into(DeviceKind kind) const override {
    if (kind == DeviceKind::kCuda) return engine_->context->reads_into_gpus();
    return unsupported("host memory needs no registration as a destination");
  }

  Result<std::unique_ptr<Destination>> register_destination(Device& device, std::byte* data,
                                                            std::uint64_t bytes) override {
    if (engine_->closed.load()) return closed_error();
    CKPT_RETURN_IF_ERROR(can_read_into(device.kind()));
    CKPT_ASSIGN_OR_RETURN(std::vector<ucp_mem*> pinned,
                          engine_->context->pin_gpu_memory(data, bytes));
    Result<std::shared_ptr<ucx::DeviceMemory>> memory = closed_error();
    if (!engine_->progress->run([&] {
          memory = ucx::DeviceMemory::open(device, engine_->context, std::move(pinned));
        })) {
      engine_->context->unpin(pinned);
    }
    CKPT_RETURN_IF_ERROR(memory.status());
    engine_->destinations.add(data, bytes, std::move(*memory));
    return std::unique_ptr<Destination>(std::make_unique<UcxDestination>(engine_, data));
  }

  Result<std::vector<std::byte>> descriptor() override {
    if (engine_->closed.load()) return closed_error();
    return encode_descriptor({std::string(name()), engine_->identity.instance,
                              engine_->identity.label, engine_->progress->address(),
                              engine_->owner->regions()});
  }

  Result<std::unique_ptr<Peer>> connect(std::span<const std::byte> descriptor,
                                        ConnectOptions options, Deadline /*deadline*/) override {
    if (engine_->closed.load()) return closed_error();
    auto state = std::make_shared<PeerState>();
    CKPT_ASSIGN_OR_RETURN(state->descriptor, decode_descriptor(descriptor, name()));
    const Descriptor& owner = state->descriptor;
    state->label = options.label.empty() ? owner.label : options.label;
    for (const Descriptor::Region& region : owner.regions) {
      state->regions.push_back({region.id, region.bytes});
    }
    state->connection = random_connection();
    state->on_lost = std::move(options.on_lost);
    if (!engine_->progress->post(
            [engine = engine_.get(), state] { engine->reader->add_peer(state); })) {
      return closed_error();
    }
    return std::unique_ptr<Peer>(std::make_unique<UcxPeer>(engine_, std::move(state)));
  }

  std::unique_ptr<Read> read(Peer& peer, std::span<const ReadRange> ranges, Deadline deadline,
                             ReadCallback callback) override {
    auto state = std::make_shared<ReadState>();
    state->deadline = deadline;
    state->callback = std::move(callback);
    auto handle = std::make_unique<UcxRead>(engine_, state);
    const auto* ours = dynamic_cast<const UcxPeer*>(&peer);
    if (ours == nullptr || ours->engine() != engine_.get()) {
      state->peer = std::make_shared<PeerState>();
      conclude(state, invalid_argument("read from a peer of another transport"));
      return handle;
    }
    state->peer = ours->state();
    if (const Status status = check_ranges(ranges, peer.regions(), peer.label()); !status.is_ok()) {
      conclude(state, status);
      return handle;
    }
    for (const ReadRange& range : ranges) state->bytes += range.bytes;
    if (state->bytes == 0) {
      conclude(state, Status::ok());
      return handle;
    }
    state->requests = plan_requests(ranges, engine_->context->read_grain());
    if (!engine_->progress->post(
            [engine = engine_.get(), state] { engine->reader->start(state); })) {
      state->finish(closed_error());
    }
    return handle;
  }

  Status signal(Peer& peer, std::span<const std::byte> message) override {
    const auto* ours = dynamic_cast<const UcxPeer*>(&peer);
    if (ours == nullptr || ours->engine() != engine_.get()) {
      return invalid_argument("signal to a peer of another transport");
    }
    if (message.size() > kMaxSignalBytes) {
      return invalid_argument(concat("a signal of ", message.size(), " bytes to ", peer.label(),
                                     ", at most ", kMaxSignalBytes, " are allowed"));
    }
    const std::shared_ptr<PeerState>& state = ours->state();
    CKPT_RETURN_IF_ERROR(state->status());
    if (state->queued_signal_bytes.fetch_add(message.size()) + message.size() >
        kMaxQueuedSignalBytes) {
      state->queued_signal_bytes.fetch_sub(message.size());
      return resource_exhausted(concat(peer.label(), " does not take its signals: ",
                                       format_bytes(kMaxQueuedSignalBytes), " wait for it"));
    }
    if (!engine_->progress->post(
            [engine = engine_.get(), state,
             copy = std::vector<std::byte>(message.begin(), message.end())]() mutable {
              engine->reader->signal(state, std::move(copy));
            })) {
      return closed_error();
    }
    return Status::ok();
  }

  void set_signal_handler(SignalHandler handler) override {
    engine_->owner->set_signal_handler(std::move(handler));
  }

  TransportStatistics statistics() const override { return engine_->counters.read(); }

  void close() override { engine_->close(); }

 private:
  /// The outcome of a read that needs no peer.
  void conclude(const std::shared_ptr<ReadState>& state, Status outcome) {
    state->finish(std::move(outcome));
    engine_->progress->post([engine = engine_.get(), state] { engine->reader->retire(state); });
  }

  const std::shared_ptr<Engine> engine_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_ucx_transport(UcxOptions options) {
  auto engine = std::make_shared<Engine>();
  engine->identity = {random_id(), options.label};
  CKPT_ASSIGN_OR_RETURN(engine->context, ucx::Context::create(options));
  CKPT_ASSIGN_OR_RETURN(engine->progress, ucx::Progress::create(engine->context));
  engine->owner = std::make_unique<ucx::Owner>(*engine->context, *engine->progress,
                                               engine->identity, engine->counters);
  engine->reader = std::make_unique<ucx::Reader>(*engine->progress, engine->identity,
                                                 engine->counters, engine->destinations);
  engine->progress->start(
      {[raw = engine.get()](ucx::Message message) { raw->on_message(std::move(message)); },
       [raw = engine.get()](const ucx::Hello& hello) { return raw->owner->check_hello(hello); },
       [raw = engine.get()](ucx::Arrival& arrival) { raw->reader->on_data(arrival); }});
  return std::unique_ptr<Transport>(std::make_unique<UcxTransport>(std::move(engine)));
}

Status ucx_viable(const UcxOptions& options, Deadline deadline) {
  std::array<std::byte, 4096> source;
  std::array<std::byte, 4096> destination{};
  source.fill(std::byte{0x5a});
  CKPT_ASSIGN_OR_RETURN(const auto owner, make_ucx_transport(options));
  CKPT_ASSIGN_OR_RETURN(const auto reader, make_ucx_transport(options));
  CKPT_ASSIGN_OR_RETURN(const auto region, owner->register_memory(source.data(), source.size()));
  CKPT_ASSIGN_OR_RETURN(const auto descriptor, owner->descriptor());
  CKPT_ASSIGN_OR_RETURN(const auto peer,
                        reader->connect(descriptor, {.label = "itself"}, deadline));
  const ReadRange range{region->id(), 0, destination.data(), destination.size()};
  Status status = reader->read(*peer, {&range, 1}, deadline)->wait(deadline);
  if (!status.is_ok()) {
    return unsupported(concat("ucx does not work here (devices: ",
                              options.net_devices.empty() ? "all" : options.net_devices,
                              "): ", status.message()));
  }
  if (source != destination) return unsupported("ucx does not work here: it read other bytes");
  return Status::ok();
}

}  // namespace ckpt
