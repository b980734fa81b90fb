#include "collective/chain/chain_signal.h"

#include <cstring>

namespace ckpt {
namespace {

constexpr std::uint32_t kMagic = 0x31534B43;  // "CKS1"

struct Layout {
  std::uint32_t magic, kind;
  std::uint64_t epoch;
  std::uint32_t pass;
  std::int32_t from;
  std::uint64_t value;
};
static_assert(sizeof(Layout) == std::tuple_size_v<ChainSignalBytes>);

}  // namespace

ChainSignalBytes encode_chain_signal(const ChainSignal& signal) {
  const Layout layout{kMagic,       static_cast<std::uint32_t>(signal.kind),
                      signal.epoch, signal.pass,
                      signal.from,  signal.value};
  ChainSignalBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

std::optional<ChainSignal> decode_chain_signal(std::span<const std::byte> bytes) {
  Layout layout;
  if (bytes.size() != sizeof(layout)) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  const auto kind = static_cast<ChainSignal::Kind>(layout.kind);
  if (layout.magic != kMagic) return std::nullopt;
  if (kind != ChainSignal::Kind::kReceived && kind != ChainSignal::Kind::kForwarded)
    return std::nullopt;
  return ChainSignal{kind, layout.epoch, layout.pass, layout.from, layout.value};
}

ChainSignals::ChainSignals(Transport& transport) : transport_(transport) {
  transport_.set_signal_handler(
      [this](const Transport::Sender& sender, std::span<const std::byte> bytes) {
        dispatch(sender, bytes);
      });
}

ChainSignals::~ChainSignals() { transport_.set_signal_handler({}); }

void ChainSignals::hand_on(Transport::SignalHandler other) {
  const std::lock_guard lock(mutex_);
  other_ = std::move(other);
}

void ChainSignals::open(std::uint64_t epoch, std::uint32_t pass, Handler handler) {
  const std::lock_guard lock(mutex_);
  handlers_[{epoch, pass}] = std::move(handler);
}

void ChainSignals::close(std::uint64_t epoch, std::uint32_t pass) {
  const std::lock_guard lock(mutex_);
  handlers_.erase({epoch, pass});
}

void ChainSignals::dispatch(const Transport::Sender& sender, std::span<const std::byte> bytes) {
  const auto signal = decode_chain_signal(bytes);
  const std::lock_guard lock(mutex_);
  if (!signal) {
    if (other_) other_(sender, bytes);
    return;
  }
  const auto at = handlers_.find({signal->epoch, signal->pass});
  if (at != handlers_.end()) at->second(*signal);
}

}  // namespace ckpt
