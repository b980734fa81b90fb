#include "transport/signal_inbox.h"

#include <utility>

namespace ckpt {

void SignalInbox::set_handler(Transport::SignalHandler handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
  if (!handler_) return;
  std::vector<Kept> kept;
  kept.swap(kept_);
  for (const Kept& signal : kept) handler_({signal.label, signal.instance}, signal.message);
}

void SignalInbox::deliver(std::string_view label, std::string_view instance,
                          std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  if (handler_) {
    handler_({label, instance}, message);
  } else {
    kept_.push_back({std::string(label), std::string(instance), {message.begin(), message.end()}});
  }
}

}  // namespace ckpt
