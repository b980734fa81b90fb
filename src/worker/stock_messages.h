// What a rank says on the stock wire, as pickles that the Python package's worker understands.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "worker/channel.h"

namespace ckpt {

/// (callable, arguments) that give the worker the ring as a torch tensor. The worker replaces
/// `device_index` by its own. kInvalidArgument for a cuda handle that has not 64 bytes, or an empty
/// ring.
Result<std::vector<std::byte>> pickle_ring(const BufferHandle& ring, int device_index = 0);
/// A list of {name, dtype, shape, offset}. kInvalidArgument names a tensor that is announced in
/// part or lies unaligned: the worker could only fail on it.
Result<std::vector<std::byte>> pickle_bucket(std::span<const RingEntry> entries);
/// None: the next step.
std::vector<std::byte> pickle_none();
/// RuntimeError(text): the worker raises it.
std::vector<std::byte> pickle_error(std::string_view text);

/// What a worker's answer says went wrong, on one line: of a Python traceback the exception at its
/// end.
std::string worker_error_text(std::string_view answer);

}  // namespace ckpt
