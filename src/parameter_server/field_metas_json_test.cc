#include "parameter_server/field_metas_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "checkpoint/catalog.h"
#include "parameter_server/metas_json.h"

namespace ckpt {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

RankMetas rank_with(int rank, std::vector<TensorInfo> tensors) {
  RankMetas entry;
  entry.layout = std::make_shared<const Layout>(Layout::make(std::move(tensors)));
  entry.instance.rank = rank;
  entry.instance.layout_hash = entry.layout->hash;
  entry.instance.digest_algorithm = 1;
  if (entry.layout->tensors.empty()) return entry;
  entry.instance.epoch = ~0ull - static_cast<std::uint64_t>(rank);
  entry.instance.host_id = concat("host", rank);
  for (std::size_t i = 0; i < entry.layout->tensors.size(); ++i) {
    entry.instance.offsets.push_back(512 * i + (1ull << 60));
    entry.instance.digests.push_back(~i);
  }
  entry.instance.transport_descriptor = {std::byte{0}, std::byte{0xAB}, std::byte{0xFF}};
  entry.instance.pool_regions = {{0, 100, ~0ull}, {4096, 1ull << 40, 2}};
  entry.instance.door_region = 1ull << 60;
  entry.instance.network = {"fe80::1", {"mlx5_0:1", "eth0"}, 400'000};
  return entry;
}

/// Ranks 0 and 3 have nothing.
Metas some_metas() {
  Metas metas;
  metas.checkpoint_name = "step/\"7\" \xC3\xB6";
  metas.ranks.push_back(rank_with(0, {}));
  metas.ranks.push_back(rank_with(1, {*make_tensor_info("a.weight", DType::kBF16, {2, 3}),
                                      *make_tensor_info("b", DType::kF8E4M3, {300})}));
  metas.ranks.push_back(rank_with(2, {*make_tensor_info("four", DType::kF4, {4, 6}),
                                      *make_tensor_info("scalar", DType::kF32, {}),
                                      *make_tensor_info("none", DType::kI64, {0, 3})}));
  metas.ranks.push_back(rank_with(3, {}));
  return metas;
}

TEST(FieldMetasJson, IsTheFieldsForm) {
  const json written = json::parse(metas_to_field_json(some_metas()));
  ASSERT_EQ(written.size(), 2u) << "ranks without tensors are left out";
  const json& rank = written["1"];
  EXPECT_EQ(rank["memory_buffer_metas_list"], json::parse(R"([{"metas": [
      {"name": "a.weight", "dtype": "torch.bfloat16", "shape": [2, 3], "aligned_size": 256},
      {"name": "b", "dtype": "torch.float8_e4m3fn", "shape": [300], "aligned_size": 512}],
      "ptr": 0, "size": 768}])"));
  EXPECT_TRUE(rank["p2p_store_addr"].is_string());
  EXPECT_EQ(rank["rdma_device"], "mlx5_0:1,eth0");
  EXPECT_EQ(rank.size(), 3u);
  const json& packed = written["2"]["memory_buffer_metas_list"][0]["metas"][0];
  EXPECT_EQ(packed["dtype"], "torch.float4_e2m1fn_x2");
  EXPECT_EQ(packed["shape"], json({4, 3})) << "torch counts pairs";
}

TEST(FieldMetasJson, NothingIsLost) {
  const Metas metas = some_metas();
  json passed_on = json::parse(metas_to_field_json(metas));
  passed_on["1"]["later"] = 1;
  for (const std::string& text : {metas_to_field_json(metas), passed_on.dump(2)}) {
    const auto read = metas_from_json(text);  // told from the engine's own form
    ASSERT_TRUE(read.is_ok()) << read.status().to_string();
    EXPECT_EQ(read->checkpoint_name, metas.checkpoint_name);
    ASSERT_EQ(read->ranks.size(), metas.ranks.size());
    for (std::size_t rank = 0; rank < metas.ranks.size(); ++rank) {
      EXPECT_EQ(read->ranks[rank].layout->tensors, metas.ranks[rank].layout->tensors);
      EXPECT_EQ(read->ranks[rank].instance, metas.ranks[rank].instance);
    }
    EXPECT_TRUE(Catalog::build(std::make_shared<Metas>(*read)).is_ok());
  }
}

TEST(FieldMetasJson, WhatIsWrongIsNamed) {
  const std::string good = metas_to_field_json(some_metas());
  const auto expect = [&](const char* pointer, json value, const char* says,
                          StatusCode code = StatusCode::kInvalidArgument) {
    json changed = json::parse(good);
    changed[json::json_pointer(pointer)] = std::move(value);
    const auto read = metas_from_json(changed.dump());
    ASSERT_FALSE(read.is_ok()) << pointer;
    EXPECT_EQ(read.status().code(), code) << pointer;
    EXPECT_THAT(read.status().message(), HasSubstr(says)) << pointer;
  };
  const std::string place = json::parse(good)["1"]["p2p_store_addr"];
  const std::string of_other = json::parse(good)["2"]["p2p_store_addr"];
  expect("/1/p2p_store_addr", nullptr, "p2p_store_addr");
  // As of the Python package itself, whose buffers have a place.
  expect("/1/p2p_store_addr", "10.0.0.7:12345", "buffer in memory");
  expect("/2/p2p_store_addr", "10.0.0.7:12345", "Mooncake", StatusCode::kUnsupported);
  expect("/1/p2p_store_addr", place + "0", "as it was exported");
  expect("/1/p2p_store_addr", place + "/", "as it was exported");
  expect("/1/p2p_store_addr", of_other, "that of this rank");
  expect("/1/memory_buffer_metas_list", 7, "\"memory_buffer_metas_list\" must be");
  expect("/1/memory_buffer_metas_list/0/metas", nullptr, "\"metas\" must be");
  expect("/1/memory_buffer_metas_list/0/metas/0/dtype", "torch.float7", "\"dtype\" must be");
  expect("/1/memory_buffer_metas_list/0/metas/0/shape", json({2, -3}), "\"shape\" must be");
  expect("/1/memory_buffer_metas_list/0/metas/0/shape", json({2, 4}),
         "that of this rank with these tensors");
  expect("/1/memory_buffer_metas_list/0/metas/0/name", "b", "twice");
  expect("/x", json::object(), "\"x\" is no rank");
  expect("/-1", json::object(), "\"-1\" is no rank");
  Metas other = some_metas();
  other.checkpoint_name = "step 8";
  expect("/2", json::parse(metas_to_field_json(other))["2"], "another export");
  EXPECT_THAT(metas_from_json("{}").status().message(), HasSubstr("no rank has any tensor"));
}

TEST(FieldMetasJson, AnyTextIsAnswered) {
  const std::string good = metas_to_field_json(some_metas());
  for (std::size_t size = 0; size < good.size(); size += 1 + size / 8) {
    EXPECT_FALSE(metas_from_field_json(good.substr(0, size)).is_ok());
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = damaged[at] == '1' ? '2' : '1';
    (void)metas_from_field_json(damaged).is_ok();
  }
}

}  // namespace
}  // namespace ckpt
