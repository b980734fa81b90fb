// Tensors named and shaped as in real models, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/strings.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// A mixture-of-experts model with block-scaled FP8 weights, multi-head latent attention in layers
/// with odd numbers and grouped queries in the others.
inline std::vector<TensorInfo> moe_model(int layers, int experts, std::int64_t hidden = 256) {
  std::vector<TensorInfo> tensors;
  const auto add = [&](std::string name, DType dtype, std::vector<std::int64_t> shape) {
    tensors.push_back(*make_tensor_info(std::move(name), dtype, std::move(shape)));
  };
  const auto add_fp8 = [&](const std::string& module, std::int64_t out, std::int64_t in) {
    add(module + ".weight", DType::kF8E4M3, {out, in});
    add(module + ".weight_scale_inv", DType::kF32, {(out + 127) / 128, (in + 127) / 128});
  };
  const auto add_mlp = [&](const std::string& module, std::int64_t width) {
    add_fp8(module + ".gate_proj", width, hidden);
    add_fp8(module + ".up_proj", width, hidden);
    add_fp8(module + ".down_proj", hidden, width);
  };
  add("model.embed_tokens.weight", DType::kBF16, {32 * hidden, hidden});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    add(prefix + "input_layernorm.weight", DType::kBF16, {hidden});
    add(prefix + "post_attention_layernorm.weight", DType::kBF16, {hidden});
    const std::string attention = prefix + "self_attn.";
    if (layer % 2 == 1) {
      add_fp8(attention + "q_a_proj", hidden / 4, hidden);
      add_fp8(attention + "kv_a_proj_with_mqa", hidden / 8, hidden);
      add(attention + "q_a_layernorm.weight", DType::kBF16, {hidden / 4});
      add(attention + "kv_a_layernorm.weight", DType::kBF16, {hidden / 8});
      add_fp8(attention + "q_b_proj", 2 * hidden, hidden / 4);
      add_fp8(attention + "kv_b_proj", 2 * hidden, hidden / 8);
    } else {
      add_fp8(attention + "q_proj", hidden, hidden);
      add_fp8(attention + "k_proj", hidden / 8, hidden);
      add_fp8(attention + "v_proj", hidden / 8, hidden);
      add(attention + "k_proj.bias", DType::kBF16, {hidden / 8});
      add(attention + "q_norm.weight", DType::kBF16, {128});
    }
    add_fp8(attention + "o_proj", hidden, hidden);
    add(prefix + "mlp.gate.weight", DType::kBF16, {experts, hidden});
    add(prefix + "mlp.gate.e_score_correction_bias", DType::kF32, {experts});
    add_mlp(prefix + "mlp.shared_experts", hidden / 2);
    for (int expert = 0; expert < experts; ++expert) {
      add_mlp(concat(prefix, "mlp.experts.", expert), hidden / 2);
    }
  }
  add("model.norm.weight", DType::kBF16, {hidden});
  add("lm_head.weight", DType::kBF16, {32 * hidden, hidden});
  return tensors;
}

}  // namespace ckpt
