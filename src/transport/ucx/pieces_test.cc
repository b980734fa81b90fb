#include "transport/ucx/pieces.h"

#include <gtest/gtest.h>

#include <map>

#include "transport/read_plan.h"

namespace ckpt::ucx {
namespace {

constexpr std::uint64_t kGiB = 1 << 30;

/// A device that takes so much at once and in all. Nothing is touched: the memory is made up.
struct Device {
  std::uint64_t at_once, in_all;
  std::map<std::uint64_t, std::uint64_t> held = {};  // by address
  std::uint64_t total = 0;

  Pieces map(std::uint64_t bytes) {
    return map_in_pieces(
        begin(), bytes,
        [&](std::byte* data, std::uint64_t size, ucp_mem** handle) {
          if (size > at_once || total + size > in_all) return -4;
          held[reinterpret_cast<std::uint64_t>(data)] = size;
          total += size;
          *handle = reinterpret_cast<ucp_mem*>(data);
          return 0;
        },
        [&](ucp_mem* handle) {
          const auto at = held.find(reinterpret_cast<std::uint64_t>(handle));
          ASSERT_NE(at, held.end());
          total -= at->second;
          held.erase(at);
        });
  }
  static std::byte* begin() { return reinterpret_cast<std::byte*>(std::uint64_t{1} << 44); }
};

TEST(Pieces, OneWhereTheDeviceTakesIt) {
  Device device{1000 * kGiB, 1000 * kGiB};
  EXPECT_EQ(device.map(3 * kGiB + 1).handles.size(), 1u);
  Device none{0, 0};
  EXPECT_TRUE(none.map(0).handles.empty());
  EXPECT_EQ(none.map(0).status, 0);
}

TEST(Pieces, SmallerOnesWithoutGapsAndOnlyAtBordersThatNoRequestCrosses) {
  for (const std::uint64_t at_once : {5 * kGiB + 12345, kGiB, 2 * kSmallestPieceBytes + 4096}) {
    Device device{at_once, 1000 * kGiB};
    const std::uint64_t bytes = 37 * kGiB + 4097;
    const Pieces pieces = device.map(bytes);
    ASSERT_EQ(pieces.status, 0) << at_once;
    EXPECT_EQ(pieces.bytes, bytes);
    EXPECT_EQ(pieces.handles.size(), device.held.size());
    std::uint64_t next = reinterpret_cast<std::uint64_t>(Device::begin());
    for (const auto& [address, size] : device.held) {
      EXPECT_EQ(address, next);
      next += size;
      const std::uint64_t border = next - reinterpret_cast<std::uint64_t>(Device::begin());
      EXPECT_TRUE(border == bytes || border % kReadGrain == 0) << border;
    }
    EXPECT_EQ(next - reinterpret_cast<std::uint64_t>(Device::begin()), bytes);
  }
}

TEST(Pieces, NothingStaysWhereTheDeviceIsFullHalfWay) {
  Device device{2 * kGiB, 7 * kGiB};
  const Pieces pieces = device.map(10 * kGiB);
  EXPECT_NE(pieces.status, 0);
  EXPECT_TRUE(pieces.handles.empty());
  EXPECT_GE(pieces.bytes, 6 * kGiB) << "for the message";
  EXPECT_EQ(device.total, 0u);
  EXPECT_TRUE(device.held.empty());
  EXPECT_EQ(device.map(6 * kGiB).status, 0) << "and what fits is taken afterwards";
}

TEST(Pieces, ALimitLikeUlimit64KiBIsNoLimitOfOnePiece) {
  Device device{64 << 10, 64 << 10};
  const Pieces pieces = device.map(kGiB);
  EXPECT_NE(pieces.status, 0);
  EXPECT_TRUE(pieces.handles.empty());
  EXPECT_EQ(device.map(4096).status, 0) << "a door";
}

}  // namespace
}  // namespace ckpt::ucx
