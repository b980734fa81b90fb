#include "parameter_server/engine_transport.h"

#include <cstring>
#include <utility>
#include <vector>

#include "transport/callback/callback_transport.h"

namespace ckpt {
namespace {

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

/// What `message` is, as its sender made it; others are dropped.
void hand_on(CallbackTransport& transport, std::span<const std::byte> message) {
  const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
  const std::size_t label_end = text.find('\0');
  if (label_end == text.npos) return;
  const std::size_t instance_end = text.find('\0', label_end + 1);
  if (instance_end == text.npos) return;
  transport.deliver_signal(text.substr(0, label_end),
                           text.substr(label_end + 1, instance_end - label_end - 1),
                           message.subspan(instance_end + 1));
}

/// The callback transport, and the end of the engine's messages before its own.
class EngineTransport final : public Transport {
 public:
  EngineTransport(std::shared_ptr<TransferEngine> engine, std::string label)
      : engine_(std::move(engine)),
        sender_(std::make_shared<std::string>()),
        transport_(make_callback_transport({label, 0}, callbacks(engine_, label, sender_))) {
    *sender_ = transport_->instance();
    engine_->set_message_handler(
        [this](std::span<const std::byte> message) { hand_on(*transport_, message); });
  }
  ~EngineTransport() override { engine_->set_message_handler({}); }

  std::string_view name() const override { return transport_->name(); }
  const std::string& instance() const override { return transport_->instance(); }
  Result<std::unique_ptr<MemoryRegion>> register_memory(void* data, std::uint64_t bytes) override {
    return transport_->register_memory(data, bytes);
  }
  Result<std::vector<std::byte>> descriptor() override { return transport_->descriptor(); }
  void set_epoch(std::uint64_t epoch) override { transport_->set_epoch(epoch); }
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
  static TransportCallbacks callbacks(const std::shared_ptr<TransferEngine>& engine,
                                      const std::string& label,
                                      const std::shared_ptr<const std::string>& instance) {
    TransportCallbacks callbacks;
    callbacks.address = engine->address();
    callbacks.register_memory = [engine](std::uint64_t, void* data, std::uint64_t bytes) {
      return bytes == 0 ? Status::ok() : engine->register_memory(data, bytes);
    };
    callbacks.deregister_memory = [engine](std::uint64_t, void* data, Deadline) {
      if (data != nullptr) engine->deregister_memory(data);
    };
    callbacks.read = [engine](const TransportCallbacks::Remote& owner,
                              std::span<const TransportCallbacks::Piece> pieces, Deadline deadline,
                              AbortSignal& abort) {
      std::vector<TransferEngine::Piece> parts;
      for (const auto& piece : pieces) {
        parts.push_back({piece.remote_address, piece.destination, piece.bytes});
      }
      return engine
          ->read(owner.address, parts, deadline.poll_ms() / 1000.0, [&] { return abort.raised(); })
          .with_context(owner.label);
    };
    callbacks.signal = [engine, label, instance](const TransportCallbacks::Remote& owner,
                                                 std::span<const std::byte> message) {
      return engine->send(owner.address, with_sender(label, *instance, message));
    };
    return callbacks;
  }

  const std::shared_ptr<TransferEngine> engine_;
  const std::shared_ptr<std::string> sender_;  // our instance, known after the transport is made
  const std::unique_ptr<CallbackTransport> transport_;
};

}  // namespace

std::unique_ptr<Transport> make_engine_transport(std::shared_ptr<TransferEngine> engine,
                                                 std::string label) {
  return std::make_unique<EngineTransport>(std::move(engine), std::move(label));
}

}  // namespace ckpt
