#include "memory/pool_reclaimer.h"

#include <gtest/gtest.h>

#include <atomic>

namespace ckpt {
namespace {

/// Counts what is pinned.
class CountingDevice final : public Device {
 public:
  class Range final : public PinnedRange {
   public:
    explicit Range(std::atomic<int>& live) : live_(live) { ++live_; }
    ~Range() override { --live_; }

   private:
    std::atomic<int>& live_;
  };

  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string uuid() const override { return {}; }
  std::string name() const override { return "counting test device"; }
  Result<DeviceMemory> memory() override { return unsupported("test"); }
  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t, const std::string&) override {
    return unsupported("test");
  }
  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle&) override {
    return unsupported("test");
  }
  Result<std::unique_ptr<CopyStream>> make_stream() override { return unsupported("test"); }
  Result<std::unique_ptr<PinnedRange>> pin(std::byte*, std::uint64_t) override {
    return std::unique_ptr<PinnedRange>(new Range(live));
  }

  std::atomic<int> live{0};
};

TEST(PoolReclaimer, WaitsUntilEverythingIsUnpinned) {
  CountingDevice device;
  PoolReclaimer reclaimer;
  for (int i = 0; i < 3; ++i) {
    auto pool = *HostPool::create(8 << 20, {.piece_bytes = 2 << 20});
    for (std::size_t piece = 0; piece < pool->pieces().size(); ++piece) {
      ASSERT_TRUE(pool->pin(piece, device).is_ok());
    }
    reclaimer.reclaim(std::move(pool));
  }
  reclaimer.wait();
  EXPECT_EQ(device.live, 0);
  reclaimer.wait();  // of nothing
}

}  // namespace
}  // namespace ckpt
