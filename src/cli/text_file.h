// Small files, read and written whole.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

Result<std::string> read_text_file(const std::string& path);
/// In one step: whoever reads finds the old text or the new one.
Status write_text_file(const std::string& path, std::string_view text);

}  // namespace ckpt
