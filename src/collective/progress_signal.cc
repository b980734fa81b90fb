#include "collective/progress_signal.h"

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
static_assert(sizeof(Layout) == std::tuple_size_v<ProgressSignalBytes>);

}  // namespace

ProgressSignalBytes encode_progress_signal(const ProgressSignal& signal) {
  const Layout layout{kMagic,       static_cast<std::uint32_t>(signal.kind),
                      signal.epoch, signal.pass,
                      signal.from,  signal.value};
  ProgressSignalBytes bytes;
  std::memcpy(bytes.data(), &layout, sizeof(layout));
  return bytes;
}

std::optional<ProgressSignal> decode_progress_signal(std::span<const std::byte> bytes) {
  Layout layout;
  if (bytes.size() != sizeof(layout)) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof(layout));
  if (layout.magic != kMagic) return std::nullopt;
  const auto kind = static_cast<ProgressSignal::Kind>(layout.kind);
  switch (kind) {
    case ProgressSignal::Kind::kReceived:
    case ProgressSignal::Kind::kForwarded:
    case ProgressSignal::Kind::kFilled:
    case ProgressSignal::Kind::kAcknowledged:
      return ProgressSignal{kind, layout.epoch, layout.pass, layout.from, layout.value};
  }
  return std::nullopt;
}

ProgressSignals::ProgressSignals(Transport& transport) : transport_(transport) {
  transport_.set_signal_handler(
      [this](const Transport::Sender& sender, std::span<const std::byte> bytes) {
        dispatch(sender, bytes);
      });
}

ProgressSignals::~ProgressSignals() { transport_.set_signal_handler({}); }

void ProgressSignals::hand_on(Transport::SignalHandler other) {
  const std::lock_guard lock(mutex_);
  other_ = std::move(other);
}

void ProgressSignals::open(std::uint64_t epoch, std::uint32_t pass, Handler handler) {
  const std::lock_guard lock(mutex_);
  handlers_[{epoch, pass}] = std::move(handler);
}

void ProgressSignals::close(std::uint64_t epoch, std::uint32_t pass) {
  const std::lock_guard lock(mutex_);
  handlers_.erase({epoch, pass});
}

void ProgressSignals::dispatch(const Transport::Sender& sender, std::span<const std::byte> bytes) {
  const auto signal = decode_progress_signal(bytes);
  const std::lock_guard lock(mutex_);
  if (!signal) {
    if (other_) other_(sender, bytes);
    return;
  }
  const auto at = handlers_.find({signal->epoch, signal->pass});
  if (at != handlers_.end()) at->second(*signal);
}

}  // namespace ckpt
