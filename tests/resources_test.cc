// Fifty updates in a row: nothing grows.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/strings.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // their own memory grows, and copies are slow
#else
constexpr bool kSanitized = false;
#endif

struct Resources {
  long descriptors = 0, threads = 0, resident_kib = 0;
  std::size_t shared_objects = 0;  ///< with a name in /dev/shm
  /// Objects in memory and files, those without a name too, as /proc/self/maps has them.
  long file_mappings = 0;
  std::uint64_t shared_bytes = 0;  ///< of /dev/shm and memfd
  long anonymous_mappings = 0;
};

long entries(const char* folder) {
  long count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

void count_mapping(const std::string& line, Resources& now) {
  unsigned long begin = 0, end = 0;
  int path_at = 0;
  std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &path_at);
  const std::string path = line.substr(static_cast<std::size_t>(path_at));
  if (path.empty() || path.front() == '[') {
    ++now.anonymous_mappings;
    return;
  }
  ++now.file_mappings;
  if (path.starts_with("/dev/shm/") || path.starts_with("/memfd:")) now.shared_bytes += end - begin;
}

Resources measure(const Job& job) {
  Resources now;
  now.shared_objects = job.shared_objects().size();
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  std::ifstream maps("/proc/self/maps"), status("/proc/self/status");
  for (std::string line; std::getline(maps, line);) count_mapping(line, now);
  for (std::string line; std::getline(status, line);)
    std::sscanf(line.c_str(), "VmRSS: %ld", &now.resident_kib);
  return now;
}

// Threads and connections of the last update may still be on their way out when it has returned:
// waits until nothing has changed for a while.
Resources settled(const Job& job) {
  constexpr std::chrono::milliseconds kPause{50};
  constexpr int kQuiet = 6, kMost = 200;
  Resources last = measure(job);
  for (int same = 0, tries = 0; same < kQuiet && tries < kMost; ++tries) {
    std::this_thread::sleep_for(kPause);
    const Resources now = measure(job);
    same = now.descriptors == last.descriptors && now.threads == last.threads &&
                   now.shared_objects == last.shared_objects &&
                   now.shared_bytes == last.shared_bytes
               ? same + 1
               : 0;
    last = now;
  }
  return last;
}

/// Of tens of MiB: a part of it, left behind by every update, is far more than allocators keep.
Checkpoint tens_of_mebibytes() {
  Checkpoint checkpoint = small_model(4, 7);
  for (int i = 0; i < (kSanitized ? 2 : 30); ++i) {
    const std::string name = concat("model.layers.", i, ".experts.weight");
    checkpoint[name] = random_tensor(name, (1 << 20) + 13, static_cast<std::uint64_t>(i));
  }
  return checkpoint;
}

void expect_flat_over_fifty_updates(const JobOptions& options) {
  const Checkpoint checkpoint = tens_of_mebibytes();
  Job job(options);
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  std::vector<TestEngine> engines;
  engines.emplace_back(3);
  Resources before;
  for (int i = 1; i <= 50; ++i) {
    for (const Status& status : job.update("c", job.call(engines))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    for (const UpdateReport& report : job.reports) {
      EXPECT_EQ(report.streams_made > 0, i == 1) << "update " << i;
    }
    if (i == 2) before = settled(job);
  }
  const Resources end = settled(job);
  EXPECT_LE(end.descriptors, before.descriptors);
  EXPECT_LE(end.threads, before.threads);
  EXPECT_EQ(end.shared_objects, before.shared_objects);
  EXPECT_EQ(end.file_mappings, before.file_mappings);
  EXPECT_EQ(end.shared_bytes, before.shared_bytes);
  if (kSanitized) return;
  // The C library keeps some stacks of threads that have ended, and an arena for each that ran
  // beside the others; one mapping of every update would be 48.
  EXPECT_LE(end.anonymous_mappings, before.anonymous_mappings + 6);
  // Some of it is in memory. A quarter of one update's bytes.
  EXPECT_LE(end.resident_kib, before.resident_kib + 8 * 1024);
}

TEST(Resources, StayFlatOverFiftyUpdatesOfTwoHosts) {
  expect_flat_over_fifty_updates({.ranks = 3, .host_ids = {"a", "a", "b"}});
}

TEST(Resources, StayFlatOverFiftyUpdatesWithRingsOfTheirOwn) {
  expect_flat_over_fifty_updates({.ranks = 3, .collective = "peer"});
}

TEST(Resources, StayFlatOverFiftyUpdatesWithKeptBuffers) {
  expect_flat_over_fifty_updates(
      {.ranks = 3, .collective = "peer", .adjust = [](ParameterServerOptions& options) {
         options.keep_buffers = true;
       }});
}

}  // namespace
}  // namespace ckpt::testing
