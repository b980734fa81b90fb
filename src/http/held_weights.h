// What a worker holds, beside a checkpoint on disk: compared with one, and written as one.
#pragma once

#include <string>

#include "base/parallel.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint_engine/status.h"
#include "http/worker_memory.h"

namespace ckpt {

/// Ok when `held` has exactly the tensors of `expected`, byte for byte. The error (kDataLoss) names
/// the tensor, and the first byte that differs.
Status compare_with_checkpoint(const WorkerMemory& held, const CheckpointFiles& expected,
                               ThreadPool& threads);

/// Writes folder/model.safetensors, tensors in plan order; an older one stays whole until the new
/// one is. Makes the folder.
Status write_held_weights(const WorkerMemory& held, const std::string& folder);

}  // namespace ckpt
