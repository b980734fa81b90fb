// The counters behind TransportStatistics.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/transport.h"

namespace ckpt {

/// Written and read from any thread.
struct TransportCounters {
  std::atomic<std::uint64_t> bytes_read{0}, bytes_served{0}, reads_done{0}, reads_failed{0},
      reads_refused{0}, signals_sent{0}, signals_received{0};

  TransportStatistics read() const {
    return {bytes_read,    bytes_served, reads_done,      reads_failed,
            reads_refused, signals_sent, signals_received};
  }
};

}  // namespace ckpt
