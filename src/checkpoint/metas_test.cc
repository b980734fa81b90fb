#include "checkpoint/metas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checkpoint/test_model.h"
#include "metas_generated.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;

TensorInfo tensor(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  return *make_tensor_info(std::move(name), dtype, std::move(shape));
}

InstanceData some_instance_data() {
  InstanceData data;
  data.rank = 7;
  data.epoch = 0xFEDCBA9876543210;
  data.host_id = "host-a";
  data.layout_hash = {1, 2};
  data.digest_algorithm = 1;
  data.offsets = {0, 256, 1ull << 40};
  data.digests = {3, ~0ull, 5};
  data.transport_descriptor = {std::byte{1}, std::byte{0}, std::byte{255}};
  data.pool_regions = {{0, 4096, 7}, {4096, 100, 9}};
  data.door_region = 11;
  data.network = {"10.0.0.7", {"mlx5_0:1", "eth0"}, 200'000};
  return data;
}

/// A layout as a stranger may write it.
struct RawLayout {
  std::string suffixes;
  std::vector<std::uint8_t> shared;
  std::vector<std::uint32_t> suffix_lengths;
  std::vector<std::pair<std::uint8_t, std::vector<std::int64_t>>> kinds;
  std::vector<std::uint32_t> kind_of;

  std::vector<std::byte> encode() const {
    flatbuffers::FlatBufferBuilder builder;
    std::vector<flatbuffers::Offset<fb::Kind>> tables;
    for (const auto& [dtype, shape] : kinds) {
      tables.push_back(fb::CreateKind(builder, dtype, builder.CreateVector(shape)));
    }
    const auto text = builder.CreateVector(reinterpret_cast<const std::uint8_t*>(suffixes.data()),
                                           suffixes.size());
    const auto shared_at = builder.CreateVector(shared);
    const auto lengths_at = builder.CreateVector(suffix_lengths);
    const auto kinds_at = builder.CreateVector(tables);
    const auto kind_of_at = builder.CreateVector(kind_of);
    builder.Finish(fb::CreateLayout(builder, text, shared_at, lengths_at, kinds_at, kind_of_at),
                   "CKL1");
    const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
    return {data, data + builder.GetSize()};
  }
};

RawLayout two_tensors() {
  return {.suffixes = "ab.weightbias",
          .shared = {0, 3},
          .suffix_lengths = {9, 4},
          .kinds = {{static_cast<std::uint8_t>(DType::kF32), {2, 3}}},
          .kind_of = {0, 0}};
}

void expect_refused(const RawLayout& layout, std::string_view reason) {
  const auto decoded = decode_layout(layout.encode());
  ASSERT_FALSE(decoded.is_ok()) << reason;
  EXPECT_EQ(decoded.status().code(), StatusCode::kProtocol);
  EXPECT_THAT(decoded.status().message(), HasSubstr(std::string(reason)));
}

TEST(Layout, SurvivesEncoding) {
  auto tensors = small_model(3, 5);
  tensors.push_back(tensor("scalar", DType::kF64, {}));
  tensors.push_back(tensor("empty", DType::kBF16, {0, 7}));
  tensors.push_back(tensor("packed", DType::kF4, {2, 2}));
  tensors.push_back(tensor(std::string(700, 'x'), DType::kU8, {1}));
  tensors.push_back(tensor(std::string(700, 'x') + "y", DType::kU8, {1}));
  tensors.push_back(tensor("", DType::kU8, {1}));
  const Layout layout = Layout::make(tensors);
  const auto decoded = decode_layout(encode_layout(layout));
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->tensors, tensors);
  EXPECT_EQ(decoded->hash, layout.hash);
  EXPECT_EQ(decoded->groups, layout.groups);
  EXPECT_EQ(decoded->name_hashes, layout.name_hashes);
}

TEST(Layout, EmptySurvivesEncoding) {
  const auto decoded = decode_layout(encode_layout(Layout::make({})));
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_TRUE(decoded->tensors.empty());
  EXPECT_EQ(decoded->hash, Layout::make({}).hash);
}

TEST(Layout, HashDependsOnEveryField) {
  const std::vector<TensorInfo> base = {tensor("ab", DType::kF16, {2, 3}),
                                        tensor("c", DType::kF16, {6})};
  const LayoutHash hash = Layout::make(base).hash;
  EXPECT_EQ(Layout::make(base).hash, hash);
  const auto changed = [&](auto change) {
    std::vector<TensorInfo> tensors = base;
    change(tensors);
    return Layout::make(tensors).hash;
  };
  EXPECT_NE(changed([](auto& t) { t[0].name = "a", t[1].name = "bc"; }), hash);
  EXPECT_NE(changed([](auto& t) { t[0].dtype = DType::kBF16; }), hash);
  EXPECT_NE(changed([](auto& t) { t[0].shape = {3, 2}; }), hash);
  EXPECT_NE(changed([](auto& t) { t[0].shape = {6}; }), hash);
  EXPECT_NE(changed([](auto& t) { std::swap(t[0], t[1]); }), hash);
  EXPECT_NE(changed([](auto& t) { t.pop_back(); }), hash);
}

TEST(Layout, HashIsTheSameOnEveryMachine) {
  const Layout layout = Layout::make({tensor("model.norm.weight", DType::kBF16, {4096})});
  EXPECT_EQ(layout.hash.to_string(), "795a2ad5c51ef0d0b93947f9bbd05adb");
}

TEST(Layout, ReadsUnalignedBytes) {
  const auto bytes = encode_layout(Layout::make(small_model(1, 1)));
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  EXPECT_TRUE(decode_layout(std::span(shifted).subspan(1)).is_ok());
}

TEST(Layout, WellFormedRawLayoutIsTaken) {
  const auto decoded = decode_layout(two_tensors().encode());
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->tensors[1].name, "ab.bias");
  EXPECT_EQ(decoded->tensors[1].bytes, 24u);
}

TEST(Layout, NonsenseIsRefused) {
  RawLayout raw = two_tensors();
  raw.suffixes = "ab.weightweight";
  raw.suffix_lengths = {9, 6};
  expect_refused(raw, "twice");
  raw = two_tensors();
  raw.kind_of.pop_back();
  expect_refused(raw, "disagree");
  raw = two_tensors();
  raw.shared.push_back(0);
  expect_refused(raw, "disagree");
  raw = two_tensors();
  raw.kind_of[1] = 1;
  expect_refused(raw, "outside");
  raw = two_tensors();
  raw.shared[0] = 1;
  expect_refused(raw, "outside");
  raw = two_tensors();
  raw.suffix_lengths[1] = 0xFFFFFFFF;
  expect_refused(raw, "outside");
  raw = two_tensors();
  raw.suffix_lengths[1] = 3;
  expect_refused(raw, "more text");
  raw = two_tensors();
  raw.kinds[0].first = 20;
  expect_refused(raw, "dtype 20");
  raw = two_tensors();
  raw.kinds[0].second = {-1};
  expect_refused(raw, "wrong shape");
  raw = two_tensors();
  raw.kinds[0].second = {1ll << 40, 1ll << 40};
  expect_refused(raw, "wrong shape");
  raw = two_tensors();
  raw.kinds[0].second.assign(kMaxDimensions + 1, 1);
  expect_refused(raw, "65 dimensions");
}

TEST(Layout, CutsAndFlipsNeverCrash) {
  const auto bytes = encode_layout(Layout::make(small_model(1, 2)));
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
    EXPECT_FALSE(decode_layout(std::span(bytes).first(size)).is_ok()) << size;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) {
    auto damaged = bytes;
    damaged[random() % damaged.size()] ^= std::byte(1 << random() % 8);
    if (const auto decoded = decode_layout(damaged); decoded.is_ok()) {
      EXPECT_TRUE(decode_layout(encode_layout(*decoded)).is_ok());
    }
  }
}

TEST(InstanceData, SurvivesEncoding) {
  const InstanceData data = some_instance_data();
  const auto decoded = decode_instance_data(encode_instance_data(data));
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_EQ(*decoded, data);
  const auto empty = decode_instance_data(encode_instance_data({}));
  ASSERT_TRUE(empty.is_ok()) << empty.status().to_string();
  EXPECT_EQ(*empty, InstanceData{});
}

TEST(InstanceData, NonsenseIsRefused) {
  InstanceData data = some_instance_data();
  data.digests.pop_back();
  auto refused = decode_instance_data(encode_instance_data(data));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("rank 7 sent 3 offsets and 2 digests"));
  data = some_instance_data();
  data.rank = -1;
  EXPECT_FALSE(decode_instance_data(encode_instance_data(data)).is_ok());
  EXPECT_FALSE(decode_instance_data(encode_layout(Layout::make({}))).is_ok());
  EXPECT_FALSE(decode_layout(encode_instance_data(some_instance_data())).is_ok());
}

TEST(InstanceData, NumbersMayLieOnBordersOfFourBytes) {
  // The verifier takes them, and one of the two lists is off the border of eight bytes.
  flatbuffers::FlatBufferBuilder builder;
  const auto list_of = [&](std::uint32_t value) {
    builder.StartVector(2, sizeof(std::uint32_t));
    builder.PushElement<std::uint32_t>(0);
    builder.PushElement<std::uint32_t>(value);
    return flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>>(builder.EndVector(1));
  };
  const auto offsets = list_of(7);
  const auto digests = list_of(9);
  builder.Finish(fb::CreateInstanceData(builder, 0, 0, 0, 0, 0, 0, offsets, digests), "CKI1");
  const auto decoded =
      decode_instance_data(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().to_string();
  EXPECT_EQ(decoded->offsets, std::vector<std::uint64_t>{7});
  EXPECT_EQ(decoded->digests, std::vector<std::uint64_t>{9});
}

TEST(InstanceData, CutsAndFlipsNeverCrash) {
  const auto bytes = encode_instance_data(some_instance_data());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    // What is cut off may be padding.
    const auto decoded = decode_instance_data(std::span(bytes).first(size));
    if (decoded.is_ok()) {
      EXPECT_EQ(*decoded, some_instance_data()) << size;
    }
  }
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= std::byte(1 << bit % 8);
    (void)decode_instance_data(damaged).is_ok();
  }
}

}  // namespace
}  // namespace ckpt
