#include "checkpoint/model_shapes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/strings.h"

namespace ckpt {
namespace {

enum class Attention { kQwen3, kGlm, kMla };

struct Model {
  std::string_view name;
  Attention attention;
  int layers;
  bool prediction_layer;  // one more layer, for multi-token prediction
  std::int64_t hidden, heads, kv_heads;
  int experts;  // 0: every layer is dense
  bool shared_expert;
  std::int64_t expert_width, dense_width;
  int dense_layers;  // the first ones
  std::int64_t vocabulary;
  bool tied;  // no lm_head: the embeddings serve
  bool fp8;   // matrices in F8_E4M3 with a scale for each block of 128 x 128
};

constexpr int kAllLayers = std::numeric_limits<int>::max();

constexpr std::array<Model, 5> kModels = {{
    {"qwen3-0.6b", Attention::kQwen3, 28, false, 1024, 16, 8, 0, false, 0, 3072, kAllLayers, 151936,
     true, false},
    {"qwen3-235b-a22b", Attention::kQwen3, 94, false, 4096, 64, 4, 128, false, 1536, 0, 0, 151936,
     false, false},
    {"glm-4.5-air", Attention::kGlm, 46, true, 4096, 96, 8, 128, true, 1408, 10944, 1, 151552,
     false, false},
    {"deepseek-v3.1", Attention::kMla, 61, true, 7168, 128, 128, 256, true, 2048, 18432, 3, 129280,
     false, true},
    {"kimi-k2", Attention::kMla, 61, false, 7168, 64, 64, 384, true, 2048, 18432, 1, 163840, false,
     true},
}};

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kRopeDim = 64;
constexpr std::int64_t kQueryRank = 1536;
constexpr std::int64_t kKeyValueRank = 512;
constexpr std::int64_t kScaleBlock = 128;
// Shrunk widths stay multiples of this, so that kernels and splits of small models still work.
constexpr std::int64_t kWidthStep = 16;
// Far above every model, and far below what would overflow a shape.
constexpr int kMaxCount = 100'000;

std::int64_t shrunk_width(std::int64_t width, int shrink) {
  if (shrink == 1 || width == 0) return width;
  return std::max<std::int64_t>(1, (width / shrink + kWidthStep - 1) / kWidthStep) * kWidthStep;
}

Model shrunk(Model model, int shrink) {
  if (shrink == 1) return model;
  for (std::int64_t* width :
       {&model.hidden, &model.expert_width, &model.dense_width, &model.vocabulary}) {
    *width = shrunk_width(*width, shrink);
  }
  model.kv_heads = std::max<std::int64_t>(1, model.kv_heads / shrink);
  const std::int64_t queries_each =
      std::max<std::int64_t>(1, model.heads / shrink / model.kv_heads);
  model.heads = model.kv_heads * queries_each;
  return model;
}

class TensorList {
 public:
  TensorList(const Model& model, int shrink)
      : model_(model),
        query_rank_(shrunk_width(kQueryRank, shrink)),
        key_value_rank_(shrunk_width(kKeyValueRank, shrink)) {}

  std::vector<TensorInfo> build() && {
    add("model.embed_tokens.weight", {model_.vocabulary, model_.hidden});
    for (int layer = 0; layer < model_.layers; ++layer) add_layer(layer);
    if (model_.prediction_layer) {
      add_layer(model_.layers);
      add_prediction(model_.layers);
    }
    add("model.norm.weight", {model_.hidden});
    if (!model_.tied) add("lm_head.weight", {model_.vocabulary, model_.hidden});
    return std::move(tensors_);
  }

 private:
  void add(std::string name, std::vector<std::int64_t> shape, DType dtype = DType::kBF16) {
    // Cannot fail: kMaxCount bounds every dimension.
    tensors_.push_back(make_tensor_info(std::move(name), dtype, std::move(shape)).value());
  }

  /// A matrix that quantised models quantise, with its scales behind it.
  void add_matrix(const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in}, model_.fp8 ? DType::kF8E4M3 : DType::kBF16);
    if (!model_.fp8) return;
    const auto blocks = [](std::int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; };
    add(name + ".weight_scale_inv", {blocks(out), blocks(in)}, DType::kF32);
  }

  void add_mlp(const std::string& prefix, std::int64_t width) {
    add_matrix(prefix + "gate_proj", width, model_.hidden);
    add_matrix(prefix + "up_proj", width, model_.hidden);
    add_matrix(prefix + "down_proj", model_.hidden, width);
  }

  void add_layer(int layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    add(prefix + "input_layernorm.weight", {model_.hidden});
    if (model_.attention == Attention::kMla) {
      add_latent_attention(prefix + "self_attn.");
    } else {
      add_grouped_attention(prefix + "self_attn.");
    }
    add(prefix + "post_attention_layernorm.weight", {model_.hidden});
    if (model_.experts == 0 || layer < model_.dense_layers) {
      add_mlp(prefix + "mlp.", model_.dense_width);
    } else {
      add_experts(prefix + "mlp.");
    }
  }

  void add_grouped_attention(const std::string& prefix) {
    const std::int64_t query = model_.heads * kHeadDim, key_value = model_.kv_heads * kHeadDim;
    const std::array<std::pair<std::string_view, std::int64_t>, 3> projections = {
        {{"q_proj", query}, {"k_proj", key_value}, {"v_proj", key_value}}};
    for (const auto& [name, out] : projections) {
      add_matrix(concat(prefix, name), out, model_.hidden);
      if (model_.attention == Attention::kGlm) add(concat(prefix, name, ".bias"), {out});
    }
    add_matrix(prefix + "o_proj", model_.hidden, query);
    if (model_.attention == Attention::kQwen3) {
      add(prefix + "q_norm.weight", {kHeadDim});
      add(prefix + "k_norm.weight", {kHeadDim});
    }
  }

  void add_latent_attention(const std::string& prefix) {
    add_matrix(prefix + "q_a_proj", query_rank_, model_.hidden);
    add(prefix + "q_a_layernorm.weight", {query_rank_});
    add_matrix(prefix + "q_b_proj", model_.heads * (kHeadDim + kRopeDim), query_rank_);
    add_matrix(prefix + "kv_a_proj_with_mqa", key_value_rank_ + kRopeDim, model_.hidden);
    add(prefix + "kv_a_layernorm.weight", {key_value_rank_});
    add_matrix(prefix + "kv_b_proj", model_.heads * 2 * kHeadDim, key_value_rank_);
    add_matrix(prefix + "o_proj", model_.hidden, model_.heads * kHeadDim);
  }

  void add_experts(const std::string& prefix) {
    add(prefix + "gate.weight", {model_.experts, model_.hidden});
    if (model_.shared_expert) {
      add(prefix + "gate.e_score_correction_bias", {model_.experts}, DType::kF32);
    }
    for (int expert = 0; expert < model_.experts; ++expert) {
      add_mlp(concat(prefix, "experts.", expert, "."), model_.expert_width);
    }
    if (model_.shared_expert) add_mlp(prefix + "shared_experts.", model_.expert_width);
  }

  void add_prediction(int layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    add(prefix + "enorm.weight", {model_.hidden});
    add(prefix + "hnorm.weight", {model_.hidden});
    add(prefix + "eh_proj.weight", {model_.hidden, 2 * model_.hidden});
    add(prefix + "embed_tokens.weight", {model_.vocabulary, model_.hidden});
    add(prefix + "shared_head.norm.weight", {model_.hidden});
    add(prefix + "shared_head.head.weight", {model_.vocabulary, model_.hidden});
  }

  const Model model_;
  const std::int64_t query_rank_, key_value_rank_;
  std::vector<TensorInfo> tensors_;
};

Status check_count(std::string_view option, int value) {
  if (value >= 1 && value <= kMaxCount) return Status::ok();
  return invalid_argument(concat(option, " must be from 1 to ", kMaxCount, ", not ", value));
}

}  // namespace

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const Model& model : kModels) names.push_back(model.name);
  return names;
}

Result<std::vector<TensorInfo>> model_tensors(std::string_view name, const ModelOptions& options) {
  const auto known = std::find_if(kModels.begin(), kModels.end(),
                                  [&](const Model& candidate) { return candidate.name == name; });
  if (known == kModels.end()) {
    std::vector<std::string> names;
    for (const std::string_view one : model_names()) names.emplace_back(one);
    return not_found(
        concat("model ", quoted(name), " is not known: take one of ", join(names, ", ")));
  }
  CKPT_RETURN_IF_ERROR(check_count("shrink", options.shrink));
  Model model = shrunk(*known, options.shrink);
  if (options.layers) {
    CKPT_RETURN_IF_ERROR(check_count("layers", *options.layers));
    model.layers = *options.layers;
  }
  if (options.experts) {
    CKPT_RETURN_IF_ERROR(check_count("experts", *options.experts));
    if (model.experts == 0) {
      return invalid_argument(concat("model ", quoted(name), " has no experts"));
    }
    model.experts = *options.experts;
  }
  return TensorList(model, options.shrink).build();
}

}  // namespace ckpt
