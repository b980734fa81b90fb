#include "checkpoint/model_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/strings.h"

namespace ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<TensorInfo> tensors_of(std::string_view name, const ModelOptions& options = {}) {
  auto tensors = model_tensors(name, options);
  EXPECT_TRUE(tensors.is_ok()) << tensors.status().to_string();
  return std::move(tensors).value();
}

std::uint64_t bytes_of(const std::vector<TensorInfo>& tensors) {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors) total += tensor.bytes;
  return total;
}

const TensorInfo& find(const std::vector<TensorInfo>& tensors, std::string_view name) {
  for (const auto& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range(std::string(name));
}

struct Published {
  std::string_view name;
  std::size_t tensors;
  double gigabytes;  // 10^9, as published
  double rounding;
};

class PublishedModel : public testing::TestWithParam<Published> {};

TEST_P(PublishedModel, HasItsTensorsAndBytes) {
  const auto tensors = tensors_of(GetParam().name);
  EXPECT_EQ(tensors.size(), GetParam().tensors);
  EXPECT_NEAR(static_cast<double>(bytes_of(tensors)) / 1e9, GetParam().gigabytes,
              GetParam().rounding);
  std::set<std::string> names;
  for (const auto& tensor : tensors) names.insert(tensor.name);
  EXPECT_EQ(names.size(), tensors.size());
}

INSTANTIATE_TEST_SUITE_P(All, PublishedModel,
                         testing::Values(Published{"qwen3-0.6b", 310, 1.19, 0.005},
                                         Published{"qwen3-235b-a22b", 36945, 470.19, 0.005},
                                         Published{"glm-4.5-air", 18329, 220.9, 0.05},
                                         Published{"deepseek-v3.1", 91991, 688.6, 0.05},
                                         Published{"kimi-k2", 139583, 1029.2, 0.05}),
                         [](const auto& model) {
                           std::string name(model.param.name);
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(ModelShapes, ScalesCoverTheirMatrix) {
  const auto tensors = tensors_of("deepseek-v3.1");
  EXPECT_THAT(find(tensors, "model.layers.3.self_attn.kv_a_proj_with_mqa.weight").shape,
              ElementsAre(576, 7168));
  const TensorInfo& scale =
      find(tensors, "model.layers.3.self_attn.kv_a_proj_with_mqa.weight_scale_inv");
  EXPECT_THAT(scale.shape, ElementsAre(5, 56));
  EXPECT_EQ(scale.dtype, DType::kF32);
  EXPECT_EQ(find(tensors, "model.layers.61.eh_proj.weight").dtype, DType::kBF16);
}

TEST(ModelShapes, LayersAndExperts) {
  const auto tensors = tensors_of("deepseek-v3.1", {.layers = 4, .experts = 2});
  EXPECT_EQ(tensors.size(), 3u * 20 + (14 + 2 + 2 * 6 + 6) * 2 + 6 + 3);
  EXPECT_NO_THROW(find(tensors, "model.layers.4.enorm.weight"));
  EXPECT_THAT(find(tensors, "model.layers.3.mlp.gate.weight").shape, ElementsAre(2, 7168));
}

TEST(ModelShapes, ShrinkKeepsNamesAndCutsBytes) {
  for (const auto name : model_names()) {
    const auto whole = tensors_of(name), small = tensors_of(name, {.shrink = 8});
    ASSERT_EQ(whole.size(), small.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(whole[i].name, small[i].name);
      ASSERT_EQ(whole[i].dtype, small[i].dtype);
      ASSERT_EQ(whole[i].shape.size(), small[i].shape.size());
    }
    EXPECT_LT(bytes_of(small), bytes_of(whole) / 30) << name;
    EXPECT_FALSE(tensors_of(name, {.shrink = 100'000}).empty());
  }
}

TEST(ModelShapes, RefusesWhatMakesNoModel) {
  EXPECT_THAT(model_tensors("gpt-2").status().message(), HasSubstr("qwen3-0.6b, qwen3-235b-a22b"));
  EXPECT_FALSE(model_tensors("qwen3-0.6b", {.layers = 0}).is_ok());
  EXPECT_FALSE(model_tensors("qwen3-0.6b", {.shrink = 0}).is_ok());
  EXPECT_THAT(model_tensors("qwen3-0.6b", {.experts = 4}).status().message(),
              HasSubstr("no experts"));
}

}  // namespace
}  // namespace ckpt
