#include "parameter_server/metas_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/strings.h"
#include "checkpoint/catalog.h"
#include "checkpoint/test_model.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;

Metas some_metas() {
  std::mt19937_64 random(1);
  Metas metas;
  metas.checkpoint_name = "step \"7\"";
  const auto shared = std::make_shared<const Layout>(Layout::make(small_model(1, 1)));
  const auto other = std::make_shared<const Layout>(
      Layout::make({*make_tensor_info("scalar", DType::kF32, {}),
                    *make_tensor_info("größe", DType::kBF16, {0, 3})}));
  for (int rank = 0; rank < 3; ++rank) {
    RankMetas entry;
    entry.layout = rank == 1 ? other : shared;
    entry.instance.rank = rank;
    entry.instance.layout_hash = entry.layout->hash;
    entry.instance.epoch = ~0ull - static_cast<std::uint64_t>(rank);
    entry.instance.host_id = concat("host", rank);
    entry.instance.digest_algorithm = 1;
    std::mt19937_64 digests(entry.layout->hash.low);
    for (std::size_t i = 0; i < entry.layout->tensors.size(); ++i) {
      entry.instance.offsets.push_back(256 * i + (1ull << 60));
      entry.instance.digests.push_back(digests());
    }
    metas.ranks.push_back(entry);
  }
  metas.ranks[1].instance.transport_descriptor = {std::byte{0}, std::byte{0xAB}, std::byte{0xFF}};
  metas.ranks[1].instance.pool_regions = {{0, 100, ~0ull}, {4096, 1ull << 63, 2}};
  metas.ranks[1].instance.door_region = 1ull << 60;
  metas.ranks[2].instance.network = {"fe80::1", {"mlx5_0:1", "eth0"}, 400'000};
  return metas;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

TEST(MetasJson, SurvivesARoundTrip) {
  const Metas metas = some_metas();
  const auto read = metas_from_json(metas_to_json(metas));
  ASSERT_TRUE(read.is_ok()) << read.status().to_string();
  EXPECT_EQ(read->checkpoint_name, metas.checkpoint_name);
  ASSERT_EQ(read->ranks.size(), metas.ranks.size());
  for (std::size_t rank = 0; rank < metas.ranks.size(); ++rank) {
    EXPECT_EQ(read->ranks[rank].layout->tensors, metas.ranks[rank].layout->tensors);
    EXPECT_EQ(read->ranks[rank].layout->hash, metas.ranks[rank].layout->hash);
    EXPECT_EQ(read->ranks[rank].instance, metas.ranks[rank].instance);
  }
  EXPECT_EQ(read->ranks[0].layout, read->ranks[2].layout) << "equal layouts are written once";
  EXPECT_TRUE(Catalog::build(std::make_shared<Metas>(*read)).is_ok());
}

TEST(MetasJson, UnknownFieldsAreIgnoredAndOptionalOnesMayBeAbsent) {
  std::string text = metas_to_json(some_metas());
  text = replaced(text, "{\"format\"", "{\"later\":{\"deep\":[1,null]},\"format\"");
  text = replaced(text, "\"epoch\"", "\"later\":1.5,\"epoch\"");
  text = replaced(text, "\"transport_descriptor\"", "\"other_descriptor\"");
  text = replaced(text, "\"pool_regions\"", "\"other_regions\"");
  text = replaced(text, "\"door_region\"", "\"other_door\"");
  text = replaced(text, "\"network\"", "\"other_network\"");
  EXPECT_TRUE(metas_from_json(text).is_ok()) << metas_from_json(text).status().to_string();
}

TEST(MetasJson, NonsenseIsRefusedByItsField) {
  const std::string good = metas_to_json(some_metas());
  const auto expect = [&](std::string_view what, std::string_view by, const char* message) {
    const auto read = metas_from_json(replaced(good, what, by));
    ASSERT_FALSE(read.is_ok()) << what;
    EXPECT_THAT(read.status().message(), HasSubstr(message));
  };
  expect("\"format\"", "\"form\"", "no \"format\"");
  expect("checkpoint-engine metas", "something else", "\"format\" must be");
  expect("\"version\":1", "\"version\":2", "version 2");
  expect("\"version\":1", "\"version\":-1", "\"version\" must be a natural number");
  expect("\"layout\":1", "\"layout\":2", "ranks[1]: \"layout\"");
  expect("\"layout\":1", "\"layout\":0", "ranks[1]: \"offsets\"");
  expect("\"epoch\":\"f", "\"epoch\":\"g", "ranks[0]: \"epoch\"");
  expect("\"epoch\":\"f", "\"epoch\":\"ff", "ranks[0]: \"epoch\"");
  expect("\"offsets\":[", "\"offsets\":[-1,", "ranks[0]: \"offsets\"");
  expect("\"digests\":[", "\"digests\":[5,", "ranks[0]: \"digests\"");
  expect("\"digests\":[", "\"digests\":[\"5\",", "ranks[0]: \"digests\"");
  expect("\"00abff\"", "\"00abf\"", "ranks[1]: \"transport_descriptor\"");
  expect("\"00abff\"", "\"00xbff\"", "ranks[1]: \"transport_descriptor\"");
  expect("\"pool_offset\":4096", "\"pool_offset\":50", "begins before");
  expect("\"dtype\":\"F32\"", "\"dtype\":\"F33\"", "\"F33\"");
  expect("\"shape\":[0,3]", "\"shape\":[0,-3]", "\"shape\"");
  expect("\"shape\":[0,3]", "\"shape\":[3,0]", "\"hash\"");
  expect("\"name\":\"scalar\"", "\"name\":\"größe\"", "twice");
  expect("\"ranks\"", "\"rank\"", "\"ranks\" must be a list");
}

TEST(MetasJson, AnyTextIsAnswered) {
  for (const char* text : {"", "null", "[]", "{}", "{", "\"x\"", "{\"format\":1}", "\xff"}) {
    EXPECT_FALSE(metas_from_json(text).is_ok()) << text;
  }
  const std::string good = metas_to_json(some_metas());
  for (std::size_t size = 0; size < good.size(); size += 1 + size / 8) {
    EXPECT_FALSE(metas_from_json(good.substr(0, size)).is_ok());
  }
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = good;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    (void)metas_from_json(damaged).is_ok();
  }
}

TEST(MetasJson, NamesThatAreNoTextAreRefusedWhenRead) {
  Metas metas = some_metas();
  metas.ranks.resize(1);
  metas.ranks[0].layout = std::make_shared<const Layout>(
      Layout::make({*make_tensor_info("\xff\xfe", DType::kU8, {1})}));
  EXPECT_FALSE(metas_from_json(metas_to_json(metas)).is_ok());
}

}  // namespace
}  // namespace ckpt
