#include "checkpoint/plan_key.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ckpt {
namespace {

struct Fusion {
  std::string_view module;
  std::string_view fused;
};

// What vLLM and SGLang load into one parameter (their `packed_modules_mapping` and
// `stacked_params_mapping`).
constexpr std::array kFusions = {
    Fusion{"q_proj", "qkv_proj"},
    Fusion{"k_proj", "qkv_proj"},
    Fusion{"v_proj", "qkv_proj"},
    Fusion{"gate_proj", "gate_up_proj"},
    Fusion{"up_proj", "gate_up_proj"},
    Fusion{"q_a_proj", "fused_qkv_a_proj"},
    Fusion{"kv_a_proj_with_mqa", "fused_qkv_a_proj"},
    Fusion{"query", "query_key_value"},
    Fusion{"key", "query_key_value"},
    Fusion{"value", "query_key_value"},
    Fusion{"wq", "wqkv"},
    Fusion{"wk", "wqkv"},
    Fusion{"wv", "wqkv"},
    Fusion{"w1", "w13"},
    Fusion{"w3", "w13"},
    Fusion{"in_proj_qkv", "in_proj_qkvz"},
    Fusion{"in_proj_z", "in_proj_qkvz"},
    Fusion{"in_proj_b", "in_proj_ba"},
    Fusion{"in_proj_a", "in_proj_ba"},
};

// Parameters of a module, as opposed to modules: left out of the group's name.
constexpr std::array<std::string_view, 14> kParameters = {
    "bias",         "scale",       "scales",  "scale_inv", "qweight", "qzeros",
    "g_idx",        "input_scale", "q_scale", "k_scale",   "v_scale", "input_global_scale",
    "output_scale", "zero_point"};

// Tensors that belong to a parameter that is itself the last component
// ("experts.down_proj_scales").
constexpr std::array<std::string_view, 8> kCompanionSuffixes = {
    "_scale_inv", "_scales", "_scale", "_bias", "_blocks", "_zero_point", "_packed", "_shape"};

constexpr std::array<std::string_view, 13> kBehindLayers = {
    "norm",   "lm_head",        "final_norm", "final_layernorm", "ln_f",
    "output", "output_layer",   "head",       "score",           "classifier",
    "pooler", "post_layernorm", "embed_out"};

template <std::size_t kSize>
bool contains(const std::array<std::string_view, kSize>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::string_view last_component(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

std::size_t component_end(std::string_view name, std::size_t begin) {
  while (begin < name.size() && name[begin] != '.') ++begin;
  return begin;
}

// Sets stack, layer and module by the first number among the components, and head where the name is
// one inside a numbered expert. Parameters and fused modules are no numbers, so that tensors of one
// group find the same.
void find_numbers(std::string_view name, PlanKey& key) {
  bool in_experts = false;
  for (std::size_t begin = 0, end; begin < name.size(); begin = end + 1) {
    end = component_end(name, begin);
    const std::string_view component = name.substr(begin, end - begin);
    const auto number = component_number(component);
    if (number && key.section != PlanSection::kLayers) {
      key.section = PlanSection::kLayers;
      key.stack = name.substr(0, begin);
      key.layer = *number;
      key.module = std::min(end + 1, name.size());
    }
    if (number && in_experts && end < name.size()) {
      key.head = name.substr(0, end);
      key.module = std::min(key.module, end);
      return;
    }
    in_experts = component.ends_with("experts");
  }
}

// Sets head and tail of a name outside the experts.
void find_module(std::string_view name, PlanKey& key) {
  const std::string_view leaf = last_component(name);
  std::string_view module = name;
  if (leaf.size() < name.size() && (leaf.starts_with("weight") || contains(kParameters, leaf))) {
    module = name.substr(0, name.size() - leaf.size() - 1);
  } else {
    for (const std::string_view suffix : kCompanionSuffixes) {
      if (leaf.size() > suffix.size() && leaf.ends_with(suffix)) {
        module.remove_suffix(suffix.size());
        break;
      }
    }
  }
  key.head = module;
  key.module = std::min(key.module, module.size());
  const std::string_view last = last_component(module);
  for (const Fusion& fusion : kFusions) {
    if (last == fusion.module) {
      key.head = module.substr(0, module.size() - last.size());
      key.tail = fusion.fused;
      return;
    }
  }
}

PlanSection section_without_layers(std::string_view head) {
  for (std::size_t begin = 0, end; begin < head.size(); begin = end + 1) {
    end = component_end(head, begin);
    if (contains(kBehindLayers, head.substr(begin, end - begin))) return PlanSection::kBehindLayers;
  }
  return PlanSection::kBeforeLayers;
}

// Absent < number < text.
std::strong_ordering compare_components(std::optional<std::string_view> a,
                                        std::optional<std::string_view> b) {
  if (!a || !b) return a.has_value() <=> b.has_value();
  const auto a_number = component_number(*a);
  const auto b_number = component_number(*b);
  if (a_number && b_number) return *a_number <=> *b_number;
  if (a_number || b_number) return b_number.has_value() <=> a_number.has_value();
  return *a <=> *b;
}

}  // namespace

std::optional<std::uint32_t> component_number(std::string_view component) {
  if (component.empty() || component[0] < '0' || component[0] > '9') return std::nullopt;
  if (component.size() > 9) return std::nullopt;
  if (component[0] == '0' && component.size() > 1) return std::nullopt;
  std::uint32_t value = 0;
  for (const char c : component) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return value;
}

std::optional<std::string_view> PlanKeyComponents::next() {
  if (head_is_over_ || head_.empty()) {
    head_is_over_ = true;
    if (tail_.empty()) return std::nullopt;
    return std::exchange(tail_, {});
  }
  const std::size_t end = head_.find('.');
  const std::string_view component = head_.substr(0, end);
  if (end == head_.npos) {
    head_is_over_ = true;
  } else {
    head_.remove_prefix(end + 1);
  }
  return component;
}

PlanKey parse_plan_key(std::string_view tensor_name) {
  PlanKey key;
  find_numbers(tensor_name, key);
  if (key.head.empty()) find_module(tensor_name, key);
  if (key.section != PlanSection::kLayers) key.section = section_without_layers(key.head);
  return key;
}

std::strong_ordering compare_groups(const PlanKey& a, const PlanKey& b) {
  if (const auto order = a.section <=> b.section; order != 0) return order;
  if (const auto order = a.stack <=> b.stack; order != 0) return order;
  if (const auto order = a.layer <=> b.layer; order != 0) return order;
  PlanKeyComponents a_components(a);
  PlanKeyComponents b_components(b);
  while (true) {
    const auto a_next = a_components.next();
    const auto b_next = b_components.next();
    if (const auto order = compare_components(a_next, b_next); order != 0) return order;
    if (!a_next) return a.head.size() <=> b.head.size();
  }
}

}  // namespace ckpt
