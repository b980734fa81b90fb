// Which recipients form an inference engine.
#pragma once

#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// `recipients` (ascending) cut into runs of `instance_size`; 0: PS_INSTANCE_SIZE, else all are one
/// instance. A size that does not divide their number is refused.
Result<std::vector<std::vector<int>>> engine_instances(const std::vector<int>& recipients,
                                                       int instance_size);

}  // namespace ckpt
