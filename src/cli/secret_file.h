// Secrets come from files, so that no process list shows them.
#pragma once

#include <string>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// The text of the file without white space at its ends; "" for an empty `path`. Refused: an empty
/// file, and one that others than its owner may read.
Result<std::string> read_secret_file(const std::string& path);

}  // namespace ckpt
