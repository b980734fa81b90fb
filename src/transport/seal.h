// A checksum over bytes that come back from files and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ckpt {

/// Finds damage, not malice: anybody can compute it. `bound_to` goes into it, so that bytes that
/// belong to one name do not pass for those of another.
std::uint64_t seal_of(std::span<const std::byte> bytes, std::string_view bound_to = {});

}  // namespace ckpt
