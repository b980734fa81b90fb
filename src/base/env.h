// Environment variables as typed options. An empty variable counts as unset; an explicit 0 is a
// value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint_engine/status.h"

namespace ckpt {

std::optional<std::string> env_string(const char* name);
/// The first of `names` that is set, as a whole number; an error names the variable.
Result<std::optional<std::int64_t>> env_int(std::initializer_list<const char*> names);
/// A number with fraction, e.g. PS_MEM_FRACTION.
Result<std::optional<double>> env_double(const char* name);
/// 1, true, yes, on / 0, false, no, off.
Result<std::optional<bool>> env_bool(const char* name);

}  // namespace ckpt
