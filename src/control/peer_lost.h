// The news that a rank has died.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// A rank that died: killed, hung, or cut off. Not one that left.
struct PeerLost {
  struct Channel {
    std::uint64_t epoch = 0;
    std::string address;
  };
  int rank = 0;
  std::string host_id;
  /// Stock channels that it had published and not withdrawn; only told to the ranks of its own
  /// host, and to whoever runs the hub.
  std::vector<Channel> channels;
  Status cause;
};
using PeerLostHandler = std::function<void(const PeerLost&)>;

}  // namespace ckpt
