// What the driver's management library (NVML) says of a GPU without a context on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ckpt {

/// Device memory that is in use on the GPU with this uuid, whoever uses it. Nothing where there is
/// no such library or it does not answer.
std::optional<std::uint64_t> used_device_memory(const std::string& uuid);

}  // namespace ckpt
