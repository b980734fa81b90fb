#include "parameter_server/field_pool_metas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/strings.h"
#include "checkpoint/catalog.h"
#include "parameter_server/metas_json.h"
#include "transport/callback/read_permits.h"
#include "transport/descriptor.h"

namespace ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// As pydantic writes it: rank 1 holds nothing and is left out, as the field's gather_metas does.
constexpr const char* kText = R"({
  "0": {"p2p_store_addr": "10.0.0.7:15000", "rdma_device": "mlx5_0", "memory_buffer_metas_list": [
    {"ptr": 4096, "size": 768, "metas": [
      {"name": "model.norm.weight", "dtype": "torch.float32", "shape": [5], "aligned_size": 256},
      {"name": "model.layers.0.w", "dtype": "torch.bfloat16", "shape": [3, 50], "aligned_size": 512}]},
    {"ptr": 140000000000000, "size": 256, "metas": [
      {"name": "model.embed_tokens.weight", "dtype": "torch.float8_e4m3fn", "shape": [], "aligned_size": 256}]}]},
  "2": {"p2p_store_addr": "[fe80::1]:7", "rdma_device": "", "memory_buffer_metas_list": []}})";

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

TEST(FieldPoolMetas, SayWhereEveryTensorLies) {
  auto metas = metas_from_json(kText);
  ASSERT_TRUE(metas.is_ok()) << metas.status().to_string();
  EXPECT_EQ(metas->checkpoint_name, kFieldCheckpointName);
  ASSERT_EQ(metas->ranks.size(), 2u);
  const RankMetas& rank = metas->ranks[0];
  const InstanceData& data = rank.instance;
  std::vector<std::string> names;
  for (const TensorInfo& tensor : rank.layout->tensors) names.push_back(tensor.name);
  EXPECT_THAT(names,
              ElementsAre("model.embed_tokens.weight", "model.layers.0.w", "model.norm.weight"))
      << "in plan order";
  EXPECT_THAT(data.offsets, ElementsAre(768u, 256u, 0u));
  EXPECT_EQ(data.digest_algorithm, 0u);
  EXPECT_EQ(data.network.address, "10.0.0.7");
  EXPECT_EQ(data.door_region, kNoDoor);
  const auto descriptor = decode_descriptor(data.transport_descriptor, "callback");
  ASSERT_TRUE(descriptor.is_ok());
  EXPECT_EQ(descriptor->instance, kWithoutPermits);
  const auto* address = reinterpret_cast<const char*>(descriptor->address.data());
  EXPECT_EQ(std::string(address, descriptor->address.size()), "10.0.0.7:15000");
  EXPECT_THAT(descriptor->regions, ElementsAre(Descriptor::Region{1, 768, 4096},
                                               Descriptor::Region{2, 256, 140'000'000'000'000}));
  EXPECT_THAT(data.pool_regions, ElementsAre(PoolRegion{0, 768, 1}, PoolRegion{768, 256, 2}));
  EXPECT_TRUE(Catalog::build(std::make_shared<const Metas>(std::move(*metas))).is_ok());
}

TEST(FieldPoolMetas, NonsenseIsRefusedByItsField) {
  const std::vector<std::array<std::string, 3>> changes = {
      {R"("10.0.0.7:15000")", "null", "p2p_store_addr"},
      {R"("10.0.0.7:15000")", R"("10.0.0.7")", "p2p_store_addr"},
      {R"("ptr": 4096)", R"("ptr": -1)", "ptr"},
      {R"("ptr": 4096)", R"("ptr": 18446744073709551615)", "size"},
      {R"("size": 768)", R"("size": 512)", "aligned_size"},
      {R"("aligned_size": 512)", R"("aligned_size": 299)", "aligned_size"},
      {R"("aligned_size": 512)", R"("aligned_size": 18446744073709551615)", "aligned_size"},
      {R"("torch.bfloat16")", R"("bfloat16")", "dtype"},
      {R"("torch.bfloat16")", R"("torch.nn")", "dtype"},
      {"[3, 50]", "[3, -50]", "shape"},
      {"[3, 50]", "[4611686018427387903, 4611686018427387903]", "model.layers.0.w"},
      {"model.layers.0.w", "model.norm.weight", "model.norm.weight"},
      {R"("2":)", R"("99999999":)", "99999999"},
      {R"("2":)", R"("two":)", "two"},
  };
  for (const auto& [what, by, named] : changes) {
    const auto metas = metas_from_json(replaced(kText, what, by));
    ASSERT_FALSE(metas.is_ok()) << by;
    EXPECT_THAT(metas.status().message(), HasSubstr(named)) << by;
  }
}

TEST(FieldPoolMetas, AnyTextIsAnswered) {
  std::mt19937 random(4);
  const std::string text = kText;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (int j = 0; j < 3; ++j) {
      damaged[random() % damaged.size()] = "{}[]\",:0129ae"[random() % 13];
    }
    static_cast<void>(metas_from_json(damaged).status());
  }
}

}  // namespace
}  // namespace ckpt
