// What the program says to its user: lines on stdout and stderr, and exit codes.
#pragma once

#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
/// A usage error, or input that is refused.
inline constexpr int kExitRefused = 2;

/// One line on stdout, at once.
void say(std::string_view line);
/// "checkpoint-engine: error: ..." on stderr; returns kExitFailure.
int fail(const Status& status);
/// The same, but returns kExitRefused.
int refuse(const Status& status);

}  // namespace ckpt
