// Where signals wait for their handler.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace ckpt {

/// Keeps signals that come before the first handler. deliver() by one thread at a time; the handler
/// runs on the thread of deliver(), or of set_handler() for what was kept.
class SignalInbox {
 public:
  /// When it returns, the earlier handler is not running. Not from inside a handler.
  void set_handler(Transport::SignalHandler handler);
  void deliver(std::string_view label, std::string_view instance,
               std::span<const std::byte> message);

 private:
  struct Kept {
    std::string label, instance;
    std::vector<std::byte> message;
  };
  // Held while the handler runs: that is how set_handler waits for it, and why no handler may call
  // back.
  std::mutex mutex_;
  Transport::SignalHandler handler_;
  std::vector<Kept> kept_;
};

}  // namespace ckpt
