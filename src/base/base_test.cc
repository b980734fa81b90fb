#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/abort_signal.h"
#include "base/bulk_copy.h"
#include "base/deadline.h"
#include "base/dynamic_library.h"
#include "base/env.h"
#include "base/host.h"
#include "base/parallel.h"
#include "base/shared_memory.h"
#include "base/strings.h"

namespace ckpt {
namespace {

TEST(Status, FirstRankStaysAndContextIsPrefixed) {
  const Status status = data_loss("digest differs").on_rank(3).on_rank(4).with_context("tensor a");
  EXPECT_EQ(status.rank(), 3);
  EXPECT_EQ(status.to_string(), "rank 3: data loss: tensor a: digest differs");
  EXPECT_EQ(Status().to_string(), "ok");
  EXPECT_TRUE(Status().on_rank(1).is_ok());
}

Result<int> half(int n) {
  if (n % 2) return invalid_argument("odd");
  return n / 2;
}
Result<int> quarter(int n) {
  CKPT_ASSIGN_OR_RETURN(const int h, half(n));
  return half(h);
}

TEST(Result, PassesValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).status().code(), StatusCode::kInvalidArgument);
}

TEST(Strings, ParsesByteSizes) {
  EXPECT_EQ(*parse_bytes("512MiB"), 512u << 20);
  EXPECT_EQ(*parse_bytes(" 1.5 GiB "), 3ull << 29);
  EXPECT_EQ(*parse_bytes("2GB"), 2000000000u);
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  for (const char* bad : {"", "x", "-1", "5 apples", "1e30GiB", "MiB", "1 MiB 2", "nan", "inf"}) {
    EXPECT_FALSE(parse_bytes(bad).is_ok()) << bad;
  }
}

TEST(Strings, FormatsSplitsTrimsQuotes) {
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(split("a,,b", ',').size(), 3u);
  EXPECT_EQ(trim("  x \n"), "x");
  EXPECT_EQ(quoted("a\"\n"), "\"a\\\"\\x0a\"");
  EXPECT_FALSE(parse_int("12x").is_ok());
  EXPECT_EQ(*parse_int("-12"), -12);
}

TEST(Env, ZeroIsAValueAndEmptyIsUnset) {
  ::setenv("CKPT_TEST_A", "", 1);
  ::setenv("CKPT_TEST_B", "0", 1);
  EXPECT_EQ(**env_int({"CKPT_TEST_A", "CKPT_TEST_B"}), 0);
  ::setenv("CKPT_TEST_B", "zero", 1);
  EXPECT_FALSE(env_int({"CKPT_TEST_A", "CKPT_TEST_B"}).is_ok());
  EXPECT_FALSE(env_bool("CKPT_TEST_B").is_ok());
}

TEST(AbortSignal, FirstCauseWinsAndWakesEverybody) {
  AbortSignal signal;
  int calls = 0;
  const int removed = signal.subscribe([&](const Status&) { calls += 100; });
  signal.subscribe([&](const Status& cause) { calls += cause.message() == "one"; });
  signal.unsubscribe(removed);
  EXPECT_FALSE(*wait_readable(signal.fd(), Deadline::after_seconds(0)));
  EXPECT_TRUE(signal.raise(aborted("one")));
  EXPECT_FALSE(signal.raise(aborted("two")));
  EXPECT_TRUE(*wait_readable(signal.fd(), Deadline::after_seconds(0)));
  EXPECT_EQ(signal.cause().message(), "one");
  signal.subscribe([&](const Status&) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(SharedMemory, IsSharedReservedAndRefusesTwice) {
  const std::string name = concat("ckpt-test-", ::getpid());
  auto made = SharedMemory::create(name, 10000);
  ASSERT_TRUE(made.is_ok()) << made.status().to_string();
  EXPECT_EQ(SharedMemory::create(name, 1).status().code(), StatusCode::kAlreadyExists);
  auto opened = SharedMemory::open(name);
  ASSERT_TRUE(opened.is_ok());
  EXPECT_EQ(opened->size(), 10000u);
  made->data()[9999] = std::byte{7};
  EXPECT_EQ(opened->data()[9999], std::byte{7});
  SharedMemory::unlink(name);
  EXPECT_EQ(SharedMemory::open(name).status().code(), StatusCode::kNotFound);
  const auto too_much = SharedMemory::create(name, *free_shared_memory() + (1ull << 40));
  EXPECT_EQ(too_much.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(SharedMemory::open(name).status().code(), StatusCode::kNotFound);
}

TEST(SharedMemory, OnlyAbandonedObjectsAreRemoved) {
  const std::string prefix = concat("ckpt-test-abandoned-", ::getpid(), "-");
  auto held = SharedMemory::create(prefix + "held", 4096);
  ASSERT_TRUE(held.is_ok());
  {
    auto left = SharedMemory::create(prefix + "left", 4096);
    ASSERT_TRUE(left.is_ok());
  }
  EXPECT_EQ(SharedMemory::remove_abandoned(prefix), 1);
  EXPECT_EQ(SharedMemory::open(prefix + "left").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(SharedMemory::open(prefix + "held").is_ok());
  SharedMemory::unlink(prefix + "held");
}

TEST(ThreadPool, RunsEveryIndexOnceAndStopsAtTheFirstError) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<std::size_t> sum{0};
    ASSERT_TRUE(pool.for_each(100,
                              [&](std::size_t i) {
                                sum += i;
                                return Status();
                              })
                    .is_ok());
    ASSERT_EQ(sum, 4950u);
  }
  std::atomic<int> calls{0};
  const Status status = pool.for_each(1000000, [&](std::size_t) {
    ++calls;
    return aborted("x");
  });
  EXPECT_EQ(status.message(), "x");
  EXPECT_LE(calls, 4);
}

TEST(BulkCopy, CopiesExactlyTheseBytesAtAnyAlignment) {
  constexpr std::size_t kMost = (256 << 10) + 300;
  std::vector<std::byte> from(kMost + 64), to(kMost + 192);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 131 + i / 251);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 4096, 256 << 10, (256 << 10) + 1, int(kMost)}) {
    for (const std::size_t shift : {0, 1, 8, 63}) {
      std::fill(to.begin(), to.end(), std::byte(0xAA));
      bulk_copy(to.data() + 64 + shift, from.data() + 63 - shift, bytes);
      ASSERT_TRUE(std::equal(from.begin() + 63 - shift, from.begin() + 63 - shift + bytes,
                             to.begin() + 64 + shift))
          << bytes << " bytes, shift " << shift;
      EXPECT_EQ(to[63 + shift], std::byte(0xAA));
      EXPECT_EQ(to[64 + shift + bytes], std::byte(0xAA));
    }
  }
}

TEST(DynamicLibrary, AbsentIsAnAnswer) {
  const auto none = DynamicLibrary::open({"libno-such-thing.so.1"});
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
  const auto c = DynamicLibrary::open({"libc.so.6"});
  ASSERT_TRUE(c.is_ok());
  EXPECT_TRUE(c->function<int(const char*)>("puts").is_ok());
  EXPECT_EQ(c->function<int()>("no_such").status().code(), StatusCode::kUnsupported);
}

TEST(Host, IdIsStableAndCanBeOverridden) {
  EXPECT_EQ(host_id(), host_id());
  ::setenv("PS_HOST_ID", "h7", 1);
  EXPECT_EQ(host_id(), "h7");
  ::unsetenv("PS_HOST_ID");
  EXPECT_NE(random_id(), random_id());
}

}  // namespace
}  // namespace ckpt
