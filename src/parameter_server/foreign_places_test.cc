#include "parameter_server/foreign_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/descriptor.h"

namespace ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TensorInfo tensor(std::string name, std::int64_t bytes) {
  return *make_tensor_info(std::move(name), DType::kU8, {bytes});
}

/// a: 0 to 100, b: 256 to 1256 across the border of two regions, c: nothing, d: the last 50 bytes.
RankMetas owner() {
  RankMetas out;
  out.layout = std::make_shared<const Layout>(
      Layout::make({tensor("a", 100), tensor("b", 1000), tensor("c", 0), tensor("d", 50)}));
  InstanceData& data = out.instance;
  data.layout_hash = out.layout->hash;
  data.offsets = {0, 256, ~0ull, 4046};
  data.digests = {1, 2, 3, 4};
  data.pool_regions = {{0, 512, 1}, {512, 1024, 2}, {4000, 96, 5}};
  data.door_region = 7;
  data.transport_descriptor = encode_descriptor({"ucx",
                                                 "0123456789abcdef",
                                                 "rank 1",
                                                 std::vector<std::byte>(80, std::byte{3}),
                                                 {{1, 512}, {2, 1024}, {5, 96}, {6, 9}, {7, 16}}});
  return out;
}

TEST(ForeignPlaces, WhatAnOwnerSaysOfItselfIsTaken) {
  const Status status = check_places(owner(), "ucx", "rank 1");
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  EXPECT_TRUE(check_places(owner(), "", "rank 1").is_ok());
  RankMetas unreadable = owner();
  unreadable.instance.transport_descriptor.clear();
  unreadable.instance.pool_regions.clear();
  EXPECT_TRUE(check_places(unreadable, "ucx", "rank 1").is_ok()) << "others may stand in for it";
}

TEST(ForeignPlaces, PlacesThatCannotBeReadAreRefusedByName) {
  const auto expect = [](auto damage, const char* message) {
    RankMetas damaged = owner();
    damage(damaged.instance);
    const Status status = check_places(damaged, "ucx", "rank 1 of the loaded metas");
    ASSERT_FALSE(status.is_ok()) << message;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 1 of the loaded metas"), HasSubstr(message)));
  };
  using Data = InstanceData;
  expect([](Data& d) { d.offsets[0] = 1'000'000'000'000; }, "\"a\" of 100 bytes at offset 1000000");
  expect([](Data& d) { d.offsets[3] = 4047; }, "\"d\" of 50 bytes at offset 4047 lies in no");
  expect([](Data& d) { d.offsets[3] = 3999; }, "lies in no registered region");
  expect([](Data& d) { d.offsets[1] = 99; }, "\"b\" of 1000 bytes at offset 99 overlaps");
  expect([](Data& d) { d.offsets[0] = 1255; }, "overlaps");
  expect([](Data& d) { d.pool_regions.clear(); }, "lies in no registered region");
  expect([](Data& d) { d.pool_regions[1] = {520, 1016, 2}; }, "region 2 of 1016 bytes");
  expect([](Data& d) { d.pool_regions[2].bytes = 97; }, "region 5 of 97 bytes");
  expect([](Data& d) { d.pool_regions[0].region = 3; }, "region 3 of 512 bytes");
  expect([](Data& d) { d.door_region = 8; }, "door, region 8");
  expect([](Data& d) { d.transport_descriptor.back() ^= std::byte{1}; }, "damaged");
  expect([](Data& d) { d.transport_descriptor.resize(20); }, "no transport descriptor");
  RankMetas other = owner();
  EXPECT_THAT(check_places(other, "callback", "rank 1").message(), HasSubstr("ucx"));
}

TEST(ForeignPlaces, AGapBetweenRegionsIsNoPlaceForATensor) {
  RankMetas gap = owner();
  gap.instance.pool_regions[1] = {513, 1024, 2};
  EXPECT_THAT(check_places(gap, "ucx", "rank 1").message(), HasSubstr("\"b\""));
}

}  // namespace
}  // namespace ckpt
