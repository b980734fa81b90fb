// What every reader of untrusted JSON here asks of simdjson On-Demand. Only for .cc files: it
// brings in simdjson.
#pragma once

#include <simdjson.h>

#include <span>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// A copy with the zeroed padding that the parser may read.
Result<simdjson::padded_string> padded_json(std::span<const std::byte> text);

/// Room for `bytes` bytes of JSON and the padding; to be filled by the caller.
Result<simdjson::padded_string> padded_json_buffer(std::size_t bytes);

/// The sentence for a parser's error.
Status json_error(simdjson::error_code error);

/// A key or string as UTF-8. On-Demand lets lone surrogates through as \u escapes; they are refused
/// here.
Result<std::string_view> json_string(simdjson::simdjson_result<std::string_view> text);

/// Reads `value` to its end and refuses what JSON does not allow. On-Demand skips what nobody asks
/// for unread, so a value that is to be ignored must be read all the same.
Status check_ignored_value(simdjson::ondemand::value value, int depth = 0);

}  // namespace ckpt
