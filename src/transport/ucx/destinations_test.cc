#include "transport/ucx/destinations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transport/ucx/ucx_inspect.h"

namespace ckpt::ucx {
namespace {

TEST(Destinations, AreFoundByTheAddressesInside) {
  const auto device = make_host_device();
  auto context = Context::create({});
  ASSERT_TRUE(context.is_ok()) << context.status().to_string();
  auto memory = DeviceMemory::open(*device, *context, {});
  ASSERT_TRUE(memory.is_ok()) << memory.status().to_string();
  std::vector<std::byte> staging(1000);
  Destinations destinations;
  EXPECT_EQ(destinations.at(staging.data()), nullptr);
  destinations.add(staging.data() + 100, 800, *memory);
  EXPECT_EQ(destinations.at(staging.data() + 99), nullptr);
  EXPECT_EQ(destinations.at(staging.data() + 100), *memory);
  EXPECT_EQ(destinations.at(staging.data() + 899), *memory);
  EXPECT_EQ(destinations.at(staging.data() + 900), nullptr);

  const std::vector<std::byte> arrived(7, std::byte{5});
  EXPECT_TRUE((*memory)->write(staging.data() + 200, arrived.data(), arrived.size()).is_ok());
  EXPECT_TRUE(std::equal(arrived.begin(), arrived.end(), staging.begin() + 200));
  EXPECT_EQ(staging[199], std::byte{0});
  EXPECT_EQ(staging[207], std::byte{0});

  destinations.remove(staging.data() + 100);
  EXPECT_EQ(destinations.at(staging.data() + 100), nullptr);
}

TEST(Destinations, OfGpusAreThereOrItIsSaidWhyNot) {
  const auto abilities = inspect_ucx({});
  ASSERT_TRUE(abilities.is_ok()) << abilities.status().to_string();
  EXPECT_NE(std::find(abilities->memory.begin(), abilities->memory.end(), "host"),
            abilities->memory.end());
  auto transport = make_ucx_transport({.label = "itself"});
  ASSERT_TRUE(transport.is_ok());
  const Status can = (*transport)->can_read_into(DeviceKind::kCuda);
  EXPECT_EQ(can.is_ok(), abilities->reads_into_gpus.is_ok());
  if (!can.is_ok()) {
    EXPECT_EQ(can.code(), StatusCode::kUnsupported);
    EXPECT_FALSE(can.message().empty());
  }
  EXPECT_FALSE((*transport)->can_read_into(DeviceKind::kHost).is_ok()) << "needs no registration";
}

}  // namespace
}  // namespace ckpt::ucx
