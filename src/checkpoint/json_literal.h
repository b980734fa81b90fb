// Text as a JSON string.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// `text` in quotes, escaped where JSON demands it. kInvalidArgument when it is not UTF-8.
Result<std::string> json_literal(std::string_view text);

}  // namespace ckpt
