// The rates of a machine that bound an update.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "device/device.h"

namespace ckpt {

struct Ceiling {
  std::string what;     ///< "host to device", "pinning", ...
  std::string with;     ///< chunk size, threads, devices
  double gb_per_s = 0;  ///< 10^9 bytes per second
  /// Of what bounds it, where the figure is our code's and not the machine's; else 0.
  double share = 0;
};

struct CeilingOptions {
  std::uint64_t bytes = 1ull << 30;  ///< of each buffer
  double seconds = 0.3;              ///< for each figure
  int threads = 1;                   ///< at most, for work of the processors
};

/// Measures one after the other; with several devices also all at once. About 20 figures.
Result<std::vector<Ceiling>> measure_ceilings(const std::vector<std::shared_ptr<Device>>& devices,
                                              const CeilingOptions& options);

}  // namespace ckpt
