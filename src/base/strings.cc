#include "base/strings.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace ckpt {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return concat(bytes, " B");
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.2f %s", value, kUnits[unit]);
  return buffer;
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  const std::string_view whole = text = trim(text);
  double value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  std::string_view unit = trim(text.substr(static_cast<std::size_t>(end - text.data())));
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  for (int power = 0; const char prefix : std::string_view("KMGT")) {
    ++power;
    const std::string letter(1, prefix);
    if (unit == letter || unit == letter + "iB") factor = std::pow(1024.0, power);
    if (unit == letter + "B") factor = std::pow(1000.0, power);
  }
  const double bytes = value * factor;
  // The comparison is also false for NaN. 2^63 keeps a margin for sums.
  if (error != std::errc() || factor == 0 || !(bytes >= 0 && bytes < 9.2e18) ||
      whole.starts_with('-')) {
    return invalid_argument(concat(quoted(whole), " is not a size; write for example 512MiB"));
  }
  return static_cast<std::uint64_t>(bytes);
}

Result<std::int64_t> parse_int(std::string_view text) {
  text = trim(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid_argument(concat(quoted(text), " is not a whole number"));
  }
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  while (true) {
    const std::size_t at = text.find(separator);
    pieces.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

std::string join(const std::vector<std::string>& pieces, std::string_view separator) {
  std::string out;
  for (const std::string& piece : pieces) {
    if (&piece != pieces.data()) out.append(separator);
    out.append(piece);
  }
  return out;
}

std::string_view trim(std::string_view text) {
  static constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 200)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char buffer[8];
      std::snprintf(buffer, sizeof(buffer), "\\x%02x", static_cast<unsigned char>(c));
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + (text.size() > 200 ? "\"..." : "\"");
}

}  // namespace ckpt
