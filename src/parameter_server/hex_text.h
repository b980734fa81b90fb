// Bytes as hexadecimal digits.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt {

/// Two lower-case digits a byte.
std::string to_hex(std::span<const std::byte> bytes);
/// Nothing unless there are two digits, of either case, for every byte.
std::optional<std::vector<std::byte>> from_hex(std::string_view digits);

}  // namespace ckpt
