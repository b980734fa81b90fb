// Tensors of published models: names, shapes and element types as in their files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

struct ModelOptions {
  /// Decoder layers, without the extra layer for multi-token prediction; the model's own when
  /// unset.
  std::optional<int> layers;
  /// Routed experts of a layer; the model's own when unset.
  std::optional<int> experts;
  /// Divides widths, heads, ranks and vocabulary (head sizes stay): a model of about
  /// 1 / shrink^2 of the bytes with as many tensors.
  int shrink = 1;
};

/// "qwen3-0.6b", "qwen3-235b-a22b", "glm-4.5-air", "deepseek-v3.1", "kimi-k2".
std::vector<std::string_view> model_names();

/// All tensors, embeddings first, then layer by layer. kNotFound lists the names there are.
Result<std::vector<TensorInfo>> model_tensors(std::string_view name,
                                              const ModelOptions& options = {});

}  // namespace ckpt
