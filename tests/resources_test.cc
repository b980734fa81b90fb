// Fifty updates in a row: nothing grows.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "support/job.h"

namespace ckpt::testing {
namespace {

struct Resources {
  long descriptors = 0, threads = 0, mappings = 0, resident_kib = 0;
  std::size_t shared_objects = 0;
};

long entries(const char* folder) {
  long count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

Resources measure(const Job& job) {
  Resources now;
  now.shared_objects = job.shared_objects().size();
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  std::ifstream maps("/proc/self/maps"), status("/proc/self/status");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
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
                   now.shared_objects == last.shared_objects
               ? same + 1
               : 0;
    last = now;
  }
  return last;
}

void expect_flat_over_fifty_updates(const JobOptions& options) {
  const Checkpoint checkpoint = small_model(4, 7);
  Job job(options);
  ASSERT_TRUE(job.load("c", checkpoint).is_ok());
  std::vector<TestEngine> engines;
  engines.emplace_back(3);
  Resources before;
  for (int i = 1; i <= 50; ++i) {
    for (const Status& status : job.update("c", job.call(engines))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    if (i == 2) before = settled(job);
  }
  const Resources end = settled(job);
  EXPECT_LE(end.descriptors, before.descriptors);
  EXPECT_LE(end.threads, before.threads);
  EXPECT_EQ(end.shared_objects, before.shared_objects);
  EXPECT_LE(end.mappings, before.mappings + 10) << "allocators keep some arenas";
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(end.resident_kib, before.resident_kib + 8 * 1024);
#endif
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
