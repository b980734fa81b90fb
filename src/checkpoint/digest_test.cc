#include "checkpoint/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "checkpoint/digest_paths.h"

namespace ckpt {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Written from the formula in digest.h alone.
std::uint64_t reference_sum(const std::byte* data, std::size_t bytes, std::uint64_t first_word) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; 8 * i < bytes; ++i) {
    std::uint64_t word = 0;
    for (std::size_t b = 0; b < 8 && 8 * i + b < bytes; ++b) {
      word |= std::uint64_t(data[8 * i + b]) << (8 * b);
    }
    const std::uint64_t x = word ^ (first_word + i + 1) * 0x9E3779B97F4A7C15;
    const std::uint64_t low = x % (1ull << 32), high = x / (1ull << 32);
    sum += low * high + (low * (1ull << 32) + high);
  }
  return sum;
}

TEST(Digest, IsTheSameOnEveryMachine) {
  Bytes counting(1000);
  for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = std::byte(i * 7 % 251);
  EXPECT_EQ(digest({}), 0u);
  EXPECT_EQ(digest(counting), 4473823016427124523u);  // from a few lines of Python
}

TEST(Digest, PathsAgreeWithTheFormula) {
  const Bytes source = random_bytes(8192, 1);
  std::mt19937_64 random(2);
  for (const DigestPath& path : digest_paths()) {
    SCOPED_TRACE(path.name);
    for (int round = 0; round < 500; ++round) {
      const std::size_t begin = random() % 64;
      const std::size_t lines = random() % 100;
      const std::uint64_t first_word = random();
      const std::byte* from = source.data() + begin;
      const std::uint64_t expected = reference_sum(from, 64 * lines, first_word);
      EXPECT_EQ(path.sum(nullptr, from, lines, first_word), expected);
      Bytes room(8192);
      std::byte* to = room.data() + random() % 64;
      EXPECT_EQ(path.copy(to, from, lines, first_word), expected);
      EXPECT_EQ(std::memcmp(to, from, 64 * lines), 0);
      std::fill(room.begin(), room.end(), std::byte{0});
      to = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
      EXPECT_EQ(path.stream(to, from, lines, first_word), expected);
      EXPECT_EQ(std::memcmp(to, from, 64 * lines), 0);
    }
  }
}

TEST(Digest, SumAgreesWithTheFormulaAtAnySizeAndAlignment) {
  const Bytes source = random_bytes(4096, 3);
  std::mt19937_64 random(4);
  for (std::size_t size = 0; size < 300; ++size) {
    const std::size_t begin = random() % 16;
    const std::uint64_t first_word = random();
    EXPECT_EQ(digest_sum(source.data() + begin, size, first_word),
              reference_sum(source.data() + begin, size, first_word));
  }
}

TEST(Digest, CopyCopiesExactlyAndSums) {
  constexpr std::size_t kLargest = 600 << 10;
  const Bytes source = random_bytes(kLargest + 64, 5);
  std::mt19937_64 random(6);
  const std::size_t sizes[] = {0,
                               1,
                               7,
                               8,
                               63,
                               64,
                               65,
                               1000,
                               4096,
                               262143,
                               262144,
                               262145,
                               (512 << 10) - 1,
                               512 << 10,
                               (512 << 10) + 1,
                               kLargest,
                               kLargest - 3};
  for (const std::size_t size : sizes) {
    for (const std::size_t shift : {0, 1, 8, 24, 35, 63}) {
      SCOPED_TRACE(testing::Message() << size << " bytes, shift " << shift);
      Bytes room(size + 256, std::byte{0xAA});
      std::byte* aligned = room.data() + 64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64;
      std::byte* to = aligned + shift;
      const std::byte* from = source.data() + random() % 64;
      const std::uint64_t first_word = random();
      EXPECT_EQ(digest_copy(to, from, size, first_word), digest_sum(from, size, first_word));
      EXPECT_EQ(std::memcmp(to, from, size), 0);
      const auto untouched = [](std::byte b) { return b == std::byte{0xAA}; };
      EXPECT_TRUE(std::all_of(room.data(), to, untouched));
      EXPECT_TRUE(std::all_of(to + size, room.data() + room.size(), untouched));
    }
  }
}

TEST(Digest, IsAPlainSumOverAnyCut) {
  const Bytes source = random_bytes(100003, 7);
  const std::uint64_t whole = digest_sum(source.data(), source.size(), 0);
  std::mt19937_64 random(8);
  for (int round = 0; round < 100; ++round) {
    std::uint64_t sum = 0;
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t piece = std::min<std::size_t>(source.size() - at, 8 * (random() % 3000));
      sum += digest_sum(source.data() + at, piece, at / 8);
      at += piece;
    }
    EXPECT_EQ(sum, whole);
  }
}

TEST(Digest, FindsEverySingleBit) {
  Bytes data = random_bytes(1003, 9);
  const std::uint64_t good = digest(data);
  for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= std::byte(1 << bit % 8);
    ASSERT_NE(digest(data), good) << "bit " << bit;
    data[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(Digest, FindsEverySingleByte) {
  Bytes data = random_bytes(203, 10);
  const std::uint64_t good = digest(data);
  for (std::byte& b : data) {
    const std::byte original = b;
    for (int value = 0; value < 256; ++value) {
      b = std::byte(value);
      ASSERT_EQ(digest(data) == good, b == original);
    }
    b = original;
  }
}

TEST(Digest, FindsRunsOfZerosAndOnes) {
  const Bytes source = random_bytes(4096, 11);
  const std::uint64_t good = digest(source);
  for (const std::byte fill : {std::byte{0}, std::byte{255}}) {
    for (std::size_t run = 1; run <= 4096; run *= 2) {
      for (std::size_t at = 0; at + run <= source.size(); at += run) {
        Bytes damaged = source;
        std::fill_n(damaged.begin() + at, run, fill);
        ASSERT_EQ(digest(damaged) == good, damaged == source) << run << " bytes at " << at;
      }
    }
  }
}

TEST(Digest, FindsSwappedWords) {
  const Bytes source = random_bytes(1024, 12);
  const std::uint64_t good = digest(source);
  for (const std::size_t width : {4, 8}) {
    for (std::size_t a = 0; a < source.size(); a += width) {
      for (std::size_t b = a + width; b < source.size(); b += width) {
        Bytes damaged = source;
        std::swap_ranges(damaged.begin() + a, damaged.begin() + a + width, damaged.begin() + b);
        ASSERT_NE(digest(damaged), good) << a << " and " << b;
      }
    }
  }
}

TEST(Digest, FindsSwappedMissingAndRepeatedBlocks) {
  const Bytes source = random_bytes(1 << 16, 13);
  const std::uint64_t good = digest(source);
  for (std::size_t block = 64; block <= source.size() / 2; block *= 2) {
    for (std::size_t at = block; at + block <= source.size(); at += block) {
      Bytes swapped = source;
      std::swap_ranges(swapped.begin(), swapped.begin() + block, swapped.begin() + at);
      ASSERT_NE(digest(swapped), good) << block << " at " << at;
      Bytes repeated = source;
      std::copy_n(source.begin() + at - block, block, repeated.begin() + at);
      ASSERT_NE(digest(repeated), good) << block << " at " << at;
    }
    Bytes rotated = source;
    std::rotate(rotated.begin(), rotated.begin() + block, rotated.end());
    ASSERT_NE(digest(rotated), good) << block;
  }
}

TEST(Digest, FindsAnotherLength) {
  std::set<std::uint64_t> seen;
  const Bytes zeros(4096);
  for (std::size_t size = 0; size <= zeros.size(); ++size) {
    EXPECT_TRUE(seen.insert(digest(std::span(zeros).first(size))).second) << size;
  }
  // The padding of the last word is zeros as well.
  Bytes data = random_bytes(16, 14);
  std::fill(data.begin() + 11, data.end(), std::byte{0});
  EXPECT_NE(digest(std::span(data).first(11)), digest(data));
}

TEST(Digest, NamesItsPath) { EXPECT_STREQ(digest_code_path(), digest_paths().front().name); }

}  // namespace
}  // namespace ckpt
