#include "base/env.h"

#include <cstdlib>

#include "base/strings.h"

namespace ckpt {

std::optional<std::string> env_string(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

Result<std::optional<std::int64_t>> env_int(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto text = env_string(name)) {
      const Result<std::int64_t> value = parse_int(*text);
      if (!value) return value.status().with_context(concat("environment variable ", name));
      return std::optional<std::int64_t>(*value);
    }
  }
  return std::optional<std::int64_t>();
}

Result<std::optional<double>> env_double(const char* name) {
  const auto text = env_string(name);
  if (!text) return std::optional<double>();
  double value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end) {
    return invalid_argument(
        concat("environment variable ", name, ": ", quoted(*text), " is not a number"));
  }
  return std::optional<double>(value);
}

Result<std::optional<bool>> env_bool(const char* name) {
  const auto text = env_string(name);
  if (!text) return std::optional<bool>();
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (*text == yes) return std::optional<bool>(true);
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (*text == no) return std::optional<bool>(false);
  }
  return invalid_argument(
      concat("environment variable ", name, ": ", quoted(*text), " is not 0 or 1"));
}

}  // namespace ckpt
