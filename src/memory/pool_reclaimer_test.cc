#include "memory/pool_reclaimer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"

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

constexpr std::uint64_t kBytes = 4 << 20;

std::unique_ptr<HostPool> make_pool(std::uint64_t bytes) {
  auto pool = HostPool::create(bytes);
  EXPECT_TRUE(pool.is_ok());
  std::memset((*pool)->pointer(0), 7, bytes);
  return std::move(*pool);
}

TEST(PoolReclaimer, APoolThatHasNotGoneIsTakenBackAsItIs) {
  CountingDevice device;
  PoolReclaimer reclaimer;
  auto pool = make_pool(kBytes);
  ASSERT_TRUE(pool->pin(0, device).is_ok());
  const std::byte* const memory = pool->pointer(0);
  // The moment may have passed on a slow machine: then there is none, which is no error.
  for (int tries = 0; tries < 20; ++tries) {
    reclaimer.reclaim(std::move(pool));
    pool = reclaimer.take_back(kBytes);
    if (!pool) {
      pool = make_pool(kBytes);
      continue;
    }
    EXPECT_EQ(pool->bytes(), kBytes);
    EXPECT_EQ(pool->pointer(0)[kBytes - 1], std::byte{7});
    if (tries == 0) {
      EXPECT_EQ(pool->pointer(0), memory);
      EXPECT_TRUE(pool->pinned(0));
    }
  }
  EXPECT_EQ(reclaimer.take_back(kBytes), nullptr) << "it was taken";
}

TEST(PoolReclaimer, AnotherSizeIsNotGiven) {
  PoolReclaimer reclaimer;
  reclaimer.reclaim(make_pool(kBytes));
  EXPECT_EQ(reclaimer.take_back(kBytes - 1), nullptr);
  EXPECT_EQ(reclaimer.take_back(2 * kBytes), nullptr);
}

TEST(PoolReclaimer, FilesInSharedMemoryAreFreedBeforeTheReturn) {
  CountingDevice device;
  PoolReclaimer reclaimer;
  const std::string path = concat("/dev/shm/ckpt-reclaimer-test-", random_id());
  std::ofstream(path) << std::string(8192, 'x');
  auto file = *FileMapping::map(path);
  std::filesystem::remove(path);
  auto pool = make_pool(kBytes);
  pool->add_file(std::move(file));
  for (std::size_t piece = 0; piece < pool->pieces().size(); ++piece) {
    ASSERT_TRUE(pool->pin(piece, device).is_ok());
  }
  EXPECT_EQ(device.live, 2);
  reclaimer.reclaim(std::move(pool));
  EXPECT_EQ(device.live, 0);
}

TEST(PoolReclaimer, AfterAWaitEverythingHasGone) {
  PoolReclaimer reclaimer;
  for (int i = 0; i < 3; ++i) reclaimer.reclaim(make_pool(kBytes));
  reclaimer.wait();
  EXPECT_EQ(reclaimer.take_back(kBytes), nullptr);
  reclaimer.reclaim(make_pool(kBytes));
  reclaimer.wait();
}

}  // namespace
}  // namespace ckpt
