// News of a process's end, at once, whoever its parent is.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// A descriptor that becomes readable when process `pid` has ended; kNotFound when it has already;
/// kUnsupported on kernels without pidfd (before 5.3) or for a pid we cannot see: the end of its
/// connection is then the only news.
Result<UniqueFd> watch_process(std::int64_t pid);

}  // namespace ckpt
