// Text without iostreams: joining, byte sizes, numbers.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

namespace detail {
inline void append(std::string& out, std::string_view text) { out.append(text); }
inline void append(std::string& out, char c) { out.push_back(c); }
template <std::same_as<bool> T>
void append(std::string& out, T value) {
  out.append(value ? "true" : "false");
}
template <typename T>
requires(std::integral<T> && !std::same_as<T, bool> &&
         !std::same_as<T, char>) void append(std::string& out, T value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}
template <std::floating_point T>
void append(std::string& out, T value) {
  char buffer[40];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), double(value),
                                   std::chars_format::general, 6)
                         .ptr);
}
}  // namespace detail

/// All arguments as text, one after the other: strings, characters, numbers, bools.
template <typename... Args>
std::string concat(const Args&... args) {
  std::string out;
  (detail::append(out, args), ...);
  return out;
}

/// "1.50 GiB", "12 B": for people.
std::string format_bytes(std::uint64_t bytes);
/// "512MiB", "1.5GiB", "4096", "2GB" (10^9): for options. Refuses signs, rests and overflow.
Result<std::uint64_t> parse_bytes(std::string_view text);
/// A whole decimal integer; refuses anything behind it.
Result<std::int64_t> parse_int(std::string_view text);
/// `text` cut at every `separator`; empty pieces are kept.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& pieces, std::string_view separator);
/// `text` without white space at both ends.
std::string_view trim(std::string_view text);
/// In double quotes, with control characters and quotes escaped, cut after 200 characters.
std::string quoted(std::string_view text);
// Where <iomanip> comes in unseen (<filesystem>, simdjson), std::quoted would be the better match.
inline std::string quoted(const std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(std::string& text) { return quoted(std::string_view(text)); }
inline std::string quoted(const char* text) { return quoted(std::string_view(text)); }

}  // namespace ckpt
