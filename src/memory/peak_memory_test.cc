// What a load costs in memory beside the pool: measured in a process of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/host.h"
#include "base/strings.h"
#include "memory/load.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kShare = 256 * kMiB;

std::uint64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::uint64_t kib = 0;
  while (status >> word) {
    if (word == key && status >> kib) return kib * 1024;
  }
  return 0;
}

// Exit code of the child: 0 fine, 1 load failed, 2 too much memory, 3 nothing measured.
int load_and_measure(const std::string& path) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the high-water mark begins anew
  const std::uint64_t before = status_bytes("VmRSS:");
  std::vector<PoolTensor> tensors;
  std::vector<FileSource> sources;
  constexpr std::uint64_t kTensor = 16 * kMiB + 256;
  for (std::uint64_t at = 0; at + kTensor <= kShare; at += kTensor) {
    tensors.push_back({concat("tensor.", at), kTensor, at});
    sources.push_back({path, at});
  }
  auto pool = HostPool::create(kShare);
  if (!pool.is_ok()) return 1;
  if (!load_files(**pool, tensors, sources,
                  {.deadline = Deadline::after_seconds(60), .threads = 4})) {
    return 1;
  }
  const std::uint64_t peak = status_bytes("VmHWM:");
  if (peak < before + kShare * 9 / 10) return 3;
  const std::uint64_t used = peak - before;
  if (used <= kShare * 102 / 100 + 48 * kMiB) return 0;
  std::fprintf(stderr, "share %s, peak %s\n", format_bytes(kShare).c_str(),
               format_bytes(used).c_str());
  return 2;
}

TEST(PeakMemory, OfALoadIsTheShareAndLittleMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory would be counted";
#endif
  const std::string path = concat("ckpt-peak-test-", random_id());
  {
    std::ofstream file(path, std::ios::binary);
    const std::string block(kMiB, 'w');
    for (std::uint64_t i = 0; i < kShare / kMiB; ++i) file << block;
  }
  const pid_t child = ::fork();
  if (child == 0) ::_exit(load_and_measure(path));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  std::filesystem::remove(path);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace ckpt
