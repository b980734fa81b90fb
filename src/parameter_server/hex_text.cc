#include "parameter_server/hex_text.h"

#include <charconv>
#include <cstdint>

namespace ckpt {

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    text += kDigits[static_cast<unsigned>(b) >> 4];
    text += kDigits[static_cast<unsigned>(b) & 15];
  }
  return text;
}

std::optional<std::vector<std::byte>> from_hex(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::vector<std::byte> bytes(digits.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::uint8_t value = 0;
    const char* pair = digits.data() + 2 * i;
    if (std::from_chars(pair, pair + 2, value, 16).ptr != pair + 2) return std::nullopt;
    bytes[i] = std::byte{value};
  }
  return bytes;
}

}  // namespace ckpt
