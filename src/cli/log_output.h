// The engine's log on the terminal.
#pragma once

#include "base/log.h"

namespace ckpt {

/// From now on log lines of `least` and above go to stderr, with time and level.
void log_to_stderr(LogLevel least);

}  // namespace ckpt
