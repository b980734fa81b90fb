#include "checkpoint/json_text.h"

#include <cstring>

#include "base/strings.h"
#include "checkpoint/json_literal.h"

namespace ckpt {
namespace od = simdjson::ondemand;
namespace {

constexpr int kMaxDepth = 64;

template <typename T>
Status outcome(simdjson::simdjson_result<T> result) {
  return result.error() ? json_error(result.error()) : Status::ok();
}

}  // namespace

Result<simdjson::padded_string> padded_json_buffer(std::size_t bytes) {
  simdjson::padded_string buffer(bytes);
  if (buffer.data() == nullptr) {
    return resource_exhausted(concat("no memory for ", bytes, " bytes of JSON"));
  }
  return buffer;
}

Result<simdjson::padded_string> padded_json(std::span<const std::byte> text) {
  CKPT_ASSIGN_OR_RETURN(simdjson::padded_string buffer, padded_json_buffer(text.size()));
  if (!text.empty()) std::memcpy(buffer.data(), text.data(), text.size());
  return buffer;
}

Status json_error(simdjson::error_code error) {
  return invalid_argument(concat("not valid JSON: ", simdjson::error_message(error)));
}

Result<std::string_view> json_string(simdjson::simdjson_result<std::string_view> text) {
  std::string_view value;
  if (const auto error = std::move(text).get(value)) return json_error(error);
  if (!simdjson::validate_utf8(value)) return json_error(simdjson::UTF8_ERROR);
  return value;
}

Result<std::string> json_literal(std::string_view text) {
  if (!simdjson::validate_utf8(text)) {
    return invalid_argument(concat(quoted(text), " is not UTF-8: JSON cannot hold it"));
  }
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[static_cast<unsigned char>(c) & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

Status check_ignored_value(od::value value, int depth) {
  if (depth > kMaxDepth) return invalid_argument(concat("nested deeper than ", kMaxDepth));
  od::json_type type;
  if (const auto error = value.type().get(type)) return json_error(error);
  switch (type) {
    case od::json_type::object: {
      od::object object;
      if (const auto error = value.get_object().get(object)) return json_error(error);
      for (auto field : object) {
        CKPT_RETURN_IF_ERROR(json_string(field.unescaped_key()).status());
        od::value child;
        if (const auto error = field.value().get(child)) return json_error(error);
        CKPT_RETURN_IF_ERROR(check_ignored_value(child, depth + 1));
      }
      return Status::ok();
    }
    case od::json_type::array: {
      od::array array;
      if (const auto error = value.get_array().get(array)) return json_error(error);
      for (auto element : array) {
        od::value child;
        if (const auto error = element.get(child)) return json_error(error);
        CKPT_RETURN_IF_ERROR(check_ignored_value(child, depth + 1));
      }
      return Status::ok();
    }
    case od::json_type::string:
      return json_string(value.get_string()).status();
    case od::json_type::number:
      return outcome(value.get_double());
    case od::json_type::boolean:
      return outcome(value.get_bool());
    case od::json_type::null: {
      bool is_null = false;
      if (const auto error = value.is_null().get(is_null)) return json_error(error);
      return is_null ? Status::ok() : json_error(simdjson::N_ATOM_ERROR);
    }
  }
  return json_error(simdjson::TAPE_ERROR);
}

}  // namespace ckpt
