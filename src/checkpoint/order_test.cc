#include "checkpoint/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "base/strings.h"
#include "checkpoint/test_model.h"

namespace ckpt {
namespace {

std::vector<TensorInfo> named(const std::vector<std::string>& names) {
  std::vector<TensorInfo> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kU8, {1}, 1});
  return tensors;
}

std::vector<std::string> ordered(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::uint32_t index : plan_order(named(names))) out.push_back(names[index]);
  return out;
}

/// Names of few components, so that equal, prefixed and awkward ones are frequent.
std::string random_name(std::mt19937_64& random) {
  static const std::vector<std::string> kComponents = {"model",
                                                       "layers",
                                                       "0",
                                                       "2",
                                                       "10",
                                                       "07",
                                                       "4294967296",
                                                       "experts",
                                                       "q_proj",
                                                       "k_proj",
                                                       "up_proj",
                                                       "gate_proj",
                                                       "weight",
                                                       "bias",
                                                       "norm",
                                                       "lm_head",
                                                       "weight_scale_inv",
                                                       "",
                                                       "qkv_proj",
                                                       "visual",
                                                       "down_proj_scales",
                                                       "99999999999999999999"};
  std::string name;
  for (std::size_t i = 0, count = 1 + random() % 9; i < count; ++i) {
    if (i > 0) name += '.';
    name += kComponents[random() % kComponents.size()];
  }
  return name;
}

TEST(GroupName, FusedModules) {
  const std::string layer = "model.layers.3.";
  for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
    for (const char* parameter : {"weight", "bias", "weight_scale_inv", "k_scale", "qweight"}) {
      EXPECT_EQ(group_name(concat(layer, "self_attn.", projection, ".", parameter)),
                layer + "self_attn.qkv_proj");
    }
  }
  EXPECT_EQ(group_name(layer + "mlp.gate_proj.weight"), layer + "mlp.gate_up_proj");
  EXPECT_EQ(group_name(layer + "mlp.up_proj.weight_scale"), layer + "mlp.gate_up_proj");
  EXPECT_EQ(group_name(layer + "mlp.down_proj.weight"), layer + "mlp.down_proj");
  EXPECT_EQ(group_name(layer + "mlp.shared_experts.gate_proj.weight"),
            layer + "mlp.shared_experts.gate_up_proj");
  EXPECT_EQ(group_name(layer + "mlp.shared_experts.up_proj.weight_scale_inv"),
            layer + "mlp.shared_experts.gate_up_proj");
}

TEST(GroupName, LatentAttention) {
  const std::string attention = "model.layers.11.self_attn.";
  EXPECT_EQ(group_name(attention + "q_a_proj.weight"), attention + "fused_qkv_a_proj");
  EXPECT_EQ(group_name(attention + "kv_a_proj_with_mqa.weight_scale_inv"),
            attention + "fused_qkv_a_proj");
  EXPECT_EQ(group_name(attention + "q_b_proj.weight"), attention + "q_b_proj");
  EXPECT_EQ(group_name(attention + "kv_b_proj.weight"), attention + "kv_b_proj");
  EXPECT_EQ(group_name(attention + "q_a_layernorm.weight"), attention + "q_a_layernorm");
}

TEST(GroupName, Experts) {
  EXPECT_EQ(group_name("model.layers.3.mlp.experts.7.up_proj.weight"),
            "model.layers.3.mlp.experts.7");
  EXPECT_EQ(group_name("model.layers.3.mlp.experts.17.down_proj.weight_scale_inv"),
            "model.layers.3.mlp.experts.17");
  EXPECT_EQ(group_name("model.layers.3.block_sparse_moe.experts.0.w2.weight"),
            "model.layers.3.block_sparse_moe.experts.0");
  // All experts in one tensor: its scales and bias go with it.
  const std::string fused = "model.layers.0.mlp.experts.gate_up_proj";
  EXPECT_EQ(group_name(fused), fused);
  EXPECT_EQ(group_name(fused + "_blocks"), fused);
  EXPECT_EQ(group_name(fused + "_scales"), fused);
  EXPECT_EQ(group_name(fused + "_bias"), fused);
}

TEST(GroupName, OthersStandAlone) {
  EXPECT_EQ(group_name("lm_head.weight"), "lm_head");
  EXPECT_EQ(group_name("model.embed_tokens.weight"), "model.embed_tokens");
  EXPECT_EQ(group_name("weight"), "weight");
  EXPECT_EQ(group_name(""), "");
  EXPECT_EQ(group_name("q_proj"), "qkv_proj");
}

TEST(GroupId, FollowsTheName) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    const std::string a = random_name(random), b = random_name(random);
    EXPECT_EQ(group_id(a) == group_id(b), group_name(a) == group_name(b)) << a << " " << b;
  }
  const std::string deep = std::string(300, 'x') + ".";
  EXPECT_EQ(group_id(deep + "q_proj.weight"), group_id(deep + "v_proj.bias"));
  EXPECT_NE(group_id(deep + "q_proj.weight"), group_id(deep + "o_proj.weight"));
}

TEST(GroupId, IsTheSameOnEveryMachine) {
  EXPECT_EQ(group_id("model.layers.3.self_attn.k_proj.weight"), 5944895941340609624u);
}

TEST(PlanOrder, ModelOrder) {
  const std::vector<std::string> expected = {
      "model.embed_tokens.weight",
      "model.layers.0.input_layernorm.weight",
      "model.layers.0.mlp.down_proj.weight",
      "model.layers.2.mlp.experts.2.down_proj.weight",
      "model.layers.2.mlp.experts.2.gate_proj.weight",
      "model.layers.2.mlp.experts.2.up_proj.weight",
      "model.layers.2.mlp.experts.10.down_proj.weight",
      "model.layers.2.mlp.gate.weight",
      "model.layers.2.self_attn.o_proj.weight",
      "model.layers.2.self_attn.k_proj.weight",
      "model.layers.2.self_attn.q_proj.bias",
      "model.layers.2.self_attn.q_proj.weight",
      "model.layers.2.self_attn.v_proj.weight",
      "model.layers.10.mlp.gate_proj.weight",
      "model.layers.10.mlp.gate_proj.weight_scale_inv",
      "model.layers.10.mlp.up_proj.weight",
      "visual.blocks.0.attn.proj.weight",
      "visual.blocks.1.attn.proj.weight",
      "lm_head.weight",
      "model.norm.weight",
  };
  std::vector<std::string> shuffled = expected;
  std::mt19937_64 random(2);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    EXPECT_EQ(ordered(shuffled), expected);
  }
}

TEST(PlanOrder, IsAStrictWeakOrdering) {
  std::mt19937_64 random(3);
  std::set<std::string> distinct;
  while (distinct.size() < 90) distinct.insert(random_name(random));
  const std::vector<std::string> names(distinct.begin(), distinct.end());
  for (const std::string& a : names) {
    ASSERT_FALSE(plan_order_less(a, a));
    for (const std::string& b : names) {
      if (a != b) {
        ASSERT_NE(plan_order_less(a, b), plan_order_less(b, a)) << a << " " << b;
      }
      if (!plan_order_less(a, b)) continue;
      for (const std::string& c : names) {
        if (plan_order_less(b, c)) {
          ASSERT_TRUE(plan_order_less(a, c)) << a << " " << b << " " << c;
        }
      }
    }
  }
}

TEST(PlanOrder, SortedKeysAgreeWithTheComparison) {
  std::mt19937_64 random(4);
  std::set<std::string> distinct;
  while (distinct.size() < 3000) distinct.insert(random_name(random));
  std::vector<std::string> names(distinct.begin(), distinct.end());
  std::shuffle(names.begin(), names.end(), random);
  std::vector<std::string> expected = names;
  std::sort(expected.begin(), expected.end(), plan_order_less);
  EXPECT_EQ(ordered(names), expected);
}

TEST(PlanOrder, DoesNotDependOnTheOrderGiven) {
  auto tensors = small_model(12, 11);
  const auto names_in_order = [&] {
    std::vector<std::string> names;
    for (const std::uint32_t index : plan_order(tensors)) names.push_back(tensors[index].name);
    return names;
  };
  const auto expected = names_in_order();
  std::mt19937_64 random(5);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(tensors.begin(), tensors.end(), random);
    EXPECT_EQ(names_in_order(), expected);
  }
}

void expect_groups_are_runs(const std::vector<TensorInfo>& tensors) {
  std::set<std::uint64_t> closed;
  std::optional<std::uint64_t> open;
  for (const std::uint32_t index : plan_order(tensors)) {
    const std::uint64_t group = group_id(tensors[index].name);
    if (group == open) continue;
    EXPECT_TRUE(closed.insert(group).second) << tensors[index].name;
    open = group;
  }
}

TEST(PlanOrder, GroupsAreRuns) {
  expect_groups_are_runs(small_model(12, 11));
  std::mt19937_64 random(6);
  std::set<std::string> distinct;
  while (distinct.size() < 3000) distinct.insert(random_name(random));
  expect_groups_are_runs(named({distinct.begin(), distinct.end()}));
}

}  // namespace
}  // namespace ckpt
