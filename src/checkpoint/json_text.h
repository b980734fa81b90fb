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

/// The sentence for a parser's error.
Status json_error(simdjson::error_code error);

/// A key, and a string ("not a string" when it is none), as UTF-8, valid as long as the document.
/// On-Demand lets lone surrogates through as \u escapes; they are refused here.
Result<std::string_view> json_key(simdjson::simdjson_result<simdjson::ondemand::field>& field);
Result<std::string_view> json_string(simdjson::ondemand::value value);

/// Reads `value` to its end and refuses what JSON does not allow. On-Demand skips what nobody asks
/// for unread, so a value that is to be ignored must be read all the same.
Status check_ignored_value(simdjson::ondemand::value value, int depth = 0);

}  // namespace ckpt
