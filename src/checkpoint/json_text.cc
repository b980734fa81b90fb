#include "checkpoint/json_text.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "checkpoint/json_literal.h"

namespace ckpt {
namespace od = simdjson::ondemand;
namespace {

constexpr int kMaxDepth = 64;

/// What stands between the quotes, where it holds no escape: the parser has validated the document
/// as UTF-8 and as free of open strings, so nothing is left to do, and nothing to copy.
std::optional<std::string_view> plain_text(od::raw_json_string raw) {
  const char* begin = raw.raw();
  const char* end = static_cast<const char*>(::rawmemchr(begin, '"'));
  const std::string_view text(begin, static_cast<std::size_t>(end - begin));
  if (text.find('\\') != std::string_view::npos) return std::nullopt;
  return text;
}

/// An escape can bring in what the document's own bytes cannot.
Result<std::string_view> checked(simdjson::simdjson_result<std::string_view> unescaped) {
  std::string_view text;
  if (const auto error = std::move(unescaped).get(text)) return json_error(error);
  if (!simdjson::validate_utf8(text)) return json_error(simdjson::UTF8_ERROR);
  return text;
}

template <typename T>
Status outcome(simdjson::simdjson_result<T> result) {
  return result.error() ? json_error(result.error()) : Status::ok();
}

}  // namespace

Result<simdjson::padded_string> padded_json(std::span<const std::byte> text) {
  simdjson::padded_string copy(reinterpret_cast<const char*>(text.data()), text.size());
  if (copy.data() == nullptr) {
    return resource_exhausted(concat("no memory for ", text.size(), " bytes of JSON"));
  }
  return copy;
}

Status json_error(simdjson::error_code error) {
  return invalid_argument(concat("not valid JSON: ", simdjson::error_message(error)));
}

Result<std::string_view> json_key(simdjson::simdjson_result<od::field>& field) {
  od::raw_json_string raw;
  if (const auto error = field.key().get(raw)) return json_error(error);
  if (const auto text = plain_text(raw)) return *text;
  return checked(field.unescaped_key());
}

Result<std::string_view> json_string(od::value value) {
  const std::string_view token = value.raw_json_token();
  if (!token.starts_with('"')) return invalid_argument("not a string");
  if (token.find('\\') != std::string_view::npos) return checked(value.get_string());
  od::raw_json_string raw;
  if (const auto error = value.get_raw_json_string().get(raw)) return json_error(error);
  return *plain_text(raw);
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
        CKPT_RETURN_IF_ERROR(json_key(field).status());
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
      return json_string(value).status();
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
