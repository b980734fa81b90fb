// A model for tests: everything that real ones have, in little.
#pragma once

#include <vector>

#include "checkpoint/model_shapes.h"

namespace ckpt {

/// Mixture of experts (dense in the first three layers), latent attention, block-scaled FP8 weights
/// and a prediction layer behind the last one.
inline std::vector<TensorInfo> small_model(int layers, int experts, int shrink = 16) {
  return *model_tensors("deepseek-v3.1", {.layers = layers, .experts = experts, .shrink = shrink});
}

}  // namespace ckpt
