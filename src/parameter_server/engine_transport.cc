#include "parameter_server/engine_transport.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "transport/callback/callback_transport.h"
#include "transport/callback/read_permits.h"

namespace ckpt {
namespace {

constexpr double kProbeSeconds = 1;

/// A signal on its way: label and instance of its sender, each ended by a zero byte, and the rest.
std::vector<std::byte> with_sender(std::string_view label, std::string_view instance,
                                   std::span<const std::byte> message) {
  std::vector<std::byte> bytes;
  for (const std::string_view text : {label, instance}) {
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), begin, begin + text.size());
    bytes.push_back(std::byte{0});
  }
  bytes.insert(bytes.end(), message.begin(), message.end());
  return bytes;
}

/// What stands behind the callbacks.
struct Link {
  std::shared_ptr<TransferEngine> engine;
  std::string label, instance;
  std::unique_ptr<ReadPermits> permits;

  Status send(const std::string& address, std::span<const std::byte> message) const {
    return engine->send(address, with_sender(label, instance, message));
  }
  Status read(const TransportCallbacks::Remote& owner,
              std::span<const TransportCallbacks::Piece> pieces, Deadline deadline,
              AbortSignal& abort) const {
    std::vector<TransferEngine::Piece> parts;
    for (const auto& piece : pieces) {
      parts.push_back({piece.remote_address, piece.destination, piece.bytes});
    }
    return engine
        ->read(owner.address, parts, deadline.poll_ms() / 1000.0, [&] { return abort.raised(); })
        .with_context(owner.label);
  }
  /// Inside permits, which the engine itself knows nothing of.
  Status read_permitted(const TransportCallbacks::Remote& owner,
                        std::span<const TransportCallbacks::Piece> pieces, Deadline deadline,
                        AbortSignal& abort) const {
    if (owner.instance == kWithoutPermits) return read(owner, pieces, deadline, abort);
    const ReadPermits::Owner who{owner.address, owner.instance, owner.label};
    std::set<std::uint64_t> regions, begun;
    for (const auto& piece : pieces) regions.insert(piece.region);
    Status status;
    for (const std::uint64_t region : regions) {
      status = permits->begin(who, region, deadline, abort);
      if (!status.is_ok()) break;
      begun.insert(region);
    }
    if (status.is_ok()) status = read(owner, pieces, deadline, abort);
    for (const std::uint64_t region : begun) {
      const Status ended = permits->end(who, region, status.is_ok(), deadline, abort);
      if (status.is_ok()) status = ended;
    }
    return status;
  }
};

/// What `message` is, as its sender made it; others are dropped.
void hand_on(CallbackTransport& transport, ReadPermits& permits,
             std::span<const std::byte> message) {
  const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
  const std::size_t label_end = text.find('\0');
  if (label_end == text.npos) return;
  const std::size_t instance_end = text.find('\0', label_end + 1);
  if (instance_end == text.npos) return;
  const std::string_view label = text.substr(0, label_end);
  const std::string_view instance = text.substr(label_end + 1, instance_end - label_end - 1);
  const auto content = message.subspan(instance_end + 1);
  if (!permits.hear({label, instance}, content)) {
    transport.deliver_signal(label, instance, content);
  }
}

/// The callback transport, and the end of the engine's messages before its own.
class EngineTransport final : public Transport {
 public:
  EngineTransport(std::shared_ptr<TransferEngine> engine, std::string label)
      : link_(std::make_shared<Link>(Link{std::move(engine), label, "", nullptr})),
        transport_(make_callback_transport(label, callbacks(link_))) {
    link_->instance = transport_->instance();
    // Of raw pointers: the permits belong to the link.
    link_->permits = std::make_unique<ReadPermits>(
        ReadPermits::Engine{
            link_->engine->address(),
            [link = link_.get()](const std::string& address, std::span<const std::byte> message) {
              return link->send(address, message);
            },
            [link = link_.get()](const std::string& address) {
              return link->engine->has_abandoned_reads(address);
            },
            [link = link_.get()](const std::string& address) {
              return link->engine->read(address, {}, kProbeSeconds, [] { return false; });
            }},
        link_->instance);
    link_->engine->set_message_handler([this](std::span<const std::byte> message) {
      hand_on(*transport_, *link_->permits, message);
    });
  }
  ~EngineTransport() override { link_->engine->set_message_handler({}); }

  std::string_view name() const override { return transport_->name(); }
  const std::string& instance() const override { return transport_->instance(); }
  Result<std::unique_ptr<MemoryRegion>> register_memory(void* data, std::uint64_t bytes) override {
    return transport_->register_memory(data, bytes);
  }
  Status can_read_into(DeviceKind kind) const override { return transport_->can_read_into(kind); }
  Result<std::unique_ptr<Destination>> register_destination(Device& device, std::byte* data,
                                                            std::uint64_t bytes) override {
    return transport_->register_destination(device, data, bytes);
  }
  Result<std::vector<std::byte>> descriptor() override { return transport_->descriptor(); }
  Result<std::unique_ptr<Peer>> connect(std::span<const std::byte> descriptor,
                                        ConnectOptions options, Deadline deadline) override {
    return transport_->connect(descriptor, std::move(options), deadline);
  }
  std::unique_ptr<Read> read(Peer& peer, std::span<const ReadRange> ranges, Deadline deadline,
                             ReadCallback callback) override {
    return transport_->read(peer, ranges, deadline, std::move(callback));
  }
  Status signal(Peer& peer, std::span<const std::byte> message) override {
    return transport_->signal(peer, message);
  }
  void set_signal_handler(SignalHandler handler) override {
    transport_->set_signal_handler(std::move(handler));
  }
  TransportStatistics statistics() const override { return transport_->statistics(); }
  void close() override { transport_->close(); }

 private:
  static TransportCallbacks callbacks(const std::shared_ptr<Link>& link) {
    TransportCallbacks callbacks;
    callbacks.address = link->engine->address();
    callbacks.register_memory = [link](std::uint64_t region, void* data, std::uint64_t bytes) {
      if (bytes == 0) return Status::ok();
      CKPT_RETURN_IF_ERROR(link->engine->register_memory(data, bytes));
      link->permits->open(region);
      return Status::ok();
    };
    callbacks.deregister_memory = [link](std::uint64_t region, void* data, Deadline deadline) {
      link->permits->close(region, deadline);
      if (data != nullptr) link->engine->deregister_memory(data);
    };
    callbacks.read = [link](const TransportCallbacks::Remote& owner,
                            std::span<const TransportCallbacks::Piece> pieces, Deadline deadline,
                            AbortSignal& abort) {
      return link->read_permitted(owner, pieces, deadline, abort);
    };
    if (link->engine->takes_destinations()) {
      callbacks.register_destination = [link](void* data, std::uint64_t bytes) {
        return link->engine->register_destination(data, bytes);
      };
      callbacks.deregister_destination = [link](void* data) {
        link->engine->deregister_destination(data);
      };
    }
    callbacks.signal = [link](const TransportCallbacks::Remote& owner,
                              std::span<const std::byte> message) {
      return link->send(owner.address, message);
    };
    return callbacks;
  }

  const std::shared_ptr<Link> link_;
  const std::unique_ptr<CallbackTransport> transport_;
};

}  // namespace

std::unique_ptr<Transport> make_engine_transport(std::shared_ptr<TransferEngine> engine,
                                                 std::string label) {
  return std::make_unique<EngineTransport>(std::move(engine), std::move(label));
}

}  // namespace ckpt
