// How fast a device copies, measured.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checkpoint_engine/status.h"
#include "device/device.h"

namespace ckpt {

/// Copies chunks of `chunk` bytes, a few queued at a time, through buffers of `bytes` bytes (at
/// least one chunk) again and again for about `seconds`: GB/s (10^9 bytes). The copies run on
/// `stream`, between memory of any kind.
Result<double> measure_copy_rate(CopyStream& stream, std::byte* to, const std::byte* from,
                                 std::uint64_t bytes, std::uint64_t chunk, double seconds);

}  // namespace ckpt
