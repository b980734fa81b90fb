// checkpoint-engine make-checkpoint: a checkpoint with the tensors of a published model and made-up
// bytes.
#pragma once

#include <string>

#include "checkpoint/model_shapes.h"
#include "checkpoint/synthetic_checkpoint.h"

namespace ckpt {

struct MakeCheckpointCommand {
  std::string like;
  std::string folder;
  ModelOptions model;
  SyntheticOptions content;
};

/// 2 when the model is unknown or the folder holds a checkpoint already.
int run(const MakeCheckpointCommand& command);

}  // namespace ckpt
