#include "memory/host_pool.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(PoolLayout, PutsTensorsInTheirOrderAt256ByteSteps) {
  const std::vector<std::uint64_t> bytes = {0, 1, 256, 257, 0, 5};
  const PoolLayout layout = *lay_out_pool(bytes);
  EXPECT_EQ(layout.offsets, (std::vector<std::uint64_t>{0, 0, 256, 512, 1024, 1024}));
  EXPECT_EQ(layout.bytes, 1280u);
  EXPECT_EQ(lay_out_pool({})->bytes, 0u);
  const std::vector<std::uint64_t> huge = {1ull << 62, 1ull << 62};
  EXPECT_EQ(lay_out_pool(huge).status().code(), StatusCode::kInvalidArgument);
}

void expect_tiled(const HostPool& pool) {
  std::size_t piece = 0;
  for (const PoolRun& segment : pool.segments()) {
    for (std::uint64_t done = 0; done < segment.bytes; ++piece) {
      ASSERT_LT(piece, pool.pieces().size());
      EXPECT_EQ(pool.pieces()[piece].offset, segment.offset + done);
      EXPECT_EQ(pool.pieces()[piece].data, segment.data + done);
      done += pool.pieces()[piece].bytes;
      EXPECT_LE(done, segment.bytes);
    }
  }
  EXPECT_EQ(piece, pool.pieces().size());
}

TEST(HostPool, PiecesTileTheMemoryFromAHugePageOn) {
  const auto pool = *HostPool::create(37 * kMiB + 100, {.piece_bytes = 8 * kMiB});
  EXPECT_EQ(pool->bytes(), 37 * kMiB + 100);
  EXPECT_EQ(pool->segments().size(), 1u);
  EXPECT_EQ(pool->pieces().size(), 5u);
  expect_tiled(*pool);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool->pointer(0)) % (2 * kMiB), 0u);
  EXPECT_EQ(pool->pointer(37 * kMiB + 99) - pool->pointer(0), std::ptrdiff_t(37 * kMiB + 99));
  EXPECT_EQ(pool->pointer(37 * kMiB + 100), nullptr);
  EXPECT_EQ(*pool->pointer(37 * kMiB + 99), std::byte(0));
}

TEST(HostPool, DefaultPiecesAreASixteenthWithinLimits) {
  EXPECT_EQ((*HostPool::create(5))->pieces().size(), 1u);
  EXPECT_EQ((*HostPool::create(64 * kMiB))->pieces().size(), 2u);
  EXPECT_EQ((*HostPool::create(1024 * kMiB))->pieces().size(), 16u);
  EXPECT_EQ((*HostPool::create(0))->pieces().size(), 0u);
}

TEST(HostPool, CutsAtThePiecesBorders) {
  const auto pool = *HostPool::create(20 * kMiB, {.piece_bytes = 8 * kMiB});
  const auto runs = *pool->cut(7 * kMiB, 10 * kMiB);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].bytes, kMiB);
  EXPECT_EQ(runs[1].offset, 8 * kMiB);
  EXPECT_EQ(runs[1].bytes, 8 * kMiB);
  EXPECT_EQ(runs[2].bytes, kMiB);
  EXPECT_EQ(runs[2].data, pool->pointer(16 * kMiB));
  EXPECT_EQ(pool->cut(8 * kMiB, 8 * kMiB)->size(), 1u);
  EXPECT_EQ(pool->cut(3, 0)->size(), 0u);
  EXPECT_EQ(pool->cut(19 * kMiB, kMiB + 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->cut(1ull << 40, 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(HostPool, ChecksRangesWithoutWrapping) {
  const auto pool = *HostPool::create(kMiB);
  EXPECT_TRUE(pool->check_range(0, kMiB).is_ok());
  EXPECT_FALSE(pool->check_range(1, kMiB).is_ok());
  EXPECT_FALSE(pool->check_range(1, ~0ull).is_ok());
  EXPECT_FALSE(pool->check_range(~0ull, 2).is_ok());
}

TEST(HostPool, RefusesWhatTheHostDoesNotHave) {
  const auto refused = HostPool::create(1ull << 50);
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("available"), std::string::npos);
  EXPECT_EQ(HostPool::create(kMiB, {.piece_bytes = 4096}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(HostPool, UsesHugePagesWhereTheKernelHasThem) {
  std::string mode;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), mode);
  if (mode.empty() || mode.find("[never]") != std::string::npos) {
    GTEST_SKIP() << "transparent huge pages are off: " << mode;
  }
  const auto huge_kib = [] {
    std::ifstream rollup("/proc/self/smaps_rollup");
    std::string word;
    while (rollup >> word) {
      if (word == "AnonHugePages:") break;
    }
    long kib = 0;
    rollup >> kib;
    return kib;
  };
  const long before = huge_kib();
  const auto pool = *HostPool::create(64 * kMiB);
  std::memset(pool->pointer(0), 1, 64 * kMiB);
  EXPECT_GE(huge_kib() - before, 32 * 1024);
}

TEST(HostPool, PrefersTheNodeAskedFor) {
  const auto pool = *HostPool::create(4 * kMiB, {.numa_node = 0});
  constexpr unsigned kAddress = 2;  // MPOL_F_ADDR
  int mode = -1;
  unsigned long mask[16] = {};
  if (::syscall(SYS_get_mempolicy, &mode, mask, 1024, pool->pointer(0), kAddress) != 0) {
    GTEST_SKIP() << "the kernel does not tell memory policies: " << std::strerror(errno);
  }
  EXPECT_EQ(mode, MPOL_PREFERRED);
  EXPECT_EQ(mask[0], 1u);
}

TEST(HostPool, FilesFollowAsSegments) {
  const std::string path = concat("/dev/shm/ckpt-pool-test-", random_id());
  std::ofstream(path) << "weights";
  const auto pool = *HostPool::create(3 * kMiB);
  const std::uint64_t offset = pool->add_file(*FileMapping::map(path));
  ASSERT_TRUE(pool->files()[0]->remove_file().is_ok());
  EXPECT_EQ(offset, 4 * kMiB);
  EXPECT_EQ(pool->bytes(), offset + 7);
  EXPECT_EQ(pool->anonymous_bytes(), 3 * kMiB);
  EXPECT_EQ(std::memcmp(pool->pointer(offset), "weights", 7), 0);
  EXPECT_EQ(pool->pointer(3 * kMiB), nullptr);  // between the segments
  EXPECT_FALSE(pool->check_range(3 * kMiB - 1, 2).is_ok());
  EXPECT_FALSE(pool->cut(3 * kMiB - 1, 2).is_ok());
  expect_tiled(*pool);
}

}  // namespace
}  // namespace ckpt
