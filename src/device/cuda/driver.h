// The NVIDIA driver of this machine: is there one, and can this program work with it?
#pragma once

#include "checkpoint_engine/status.h"

namespace ckpt {

/// How many GPUs this process sees; 0 where there is no GPU, no driver, or no CUDA in this build.
/// kUnavailable where there is a driver that this program cannot work with: too old (with its
/// version and the one that is needed), or in disorder (with CUDA's words). Any thread.
Result<int> find_gpus();

}  // namespace ckpt
