#include "checkpoint/digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bulk_copy.h"
#include "checkpoint/digest_paths.h"

namespace ckpt {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

// Below this the destination is likely to be read soon, out of the cache.
constexpr std::size_t kStreamFrom = 256 << 10;
// Fits the second-level cache: what was summed is copied before it is gone.
constexpr std::size_t kCacheBlock = 256 << 10;

// For what is too short for a kernel. The last word is padded with zeros.
std::uint64_t sum_words(const std::byte* data, std::size_t bytes, std::uint64_t first_word) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, bytes - at));
    sum += digest_term(word, first_word + at / 8);
  }
  return sum;
}

std::uint64_t copy_words(std::byte* to, const std::byte* from, std::size_t bytes,
                         std::uint64_t first_word) {
  std::memcpy(to, from, bytes);
  return sum_words(from, bytes, first_word);
}

// For a destination between word borders, which no streaming store reaches while it keeps the
// words of the source whole.
std::uint64_t copy_in_blocks(std::byte* to, const std::byte* from, std::size_t bytes,
                             std::uint64_t first_word) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes;) {
    // Never a rest below the size from which bulk_copy streams.
    const std::size_t left = bytes - at;
    const std::size_t block = left < 2 * kCacheBlock ? left : kCacheBlock;
    sum += digest_sum(from + at, block, first_word + at / 8);
    bulk_copy(to + at, from + at, block);
    at += block;
  }
  return sum;
}

std::uint64_t splitmix64_finalizer(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

const DigestPath& chosen_path() {
  static const DigestPath& path = digest_paths().front();
  return path;
}

}  // namespace

std::uint64_t digest_sum(const std::byte* data, std::size_t bytes, std::uint64_t first_word) {
  const std::size_t lines = bytes / kDigestLine;
  const std::size_t whole = lines * kDigestLine;
  return chosen_path().sum(nullptr, data, lines, first_word) +
         sum_words(data + whole, bytes - whole, first_word + whole / 8);
}

std::uint64_t digest_copy(std::byte* to, const std::byte* from, std::size_t bytes,
                          std::uint64_t first_word) {
  DigestKernel kernel = chosen_path().copy;
  std::size_t head = 0;
  if (bytes >= kStreamFrom) {
    const auto address = reinterpret_cast<std::uintptr_t>(to);
    if (address % 8 != 0) return copy_in_blocks(to, from, bytes, first_word);
    head = (kDigestLine - address % kDigestLine) % kDigestLine;
    kernel = chosen_path().stream;
  }
  const std::size_t lines = (bytes - head) / kDigestLine;
  const std::size_t tail = head + lines * kDigestLine;
  return copy_words(to, from, head, first_word) +
         kernel(to + head, from + head, lines, first_word + head / 8) +
         copy_words(to + tail, from + tail, bytes - tail, first_word + tail / 8);
}

std::uint64_t digest_finish(std::uint64_t sum, std::uint64_t bytes) {
  return sum + splitmix64_finalizer(bytes);
}

std::uint64_t digest(std::span<const std::byte> tensor) {
  return digest_finish(digest_sum(tensor.data(), tensor.size(), 0), tensor.size());
}

const char* digest_code_path() { return chosen_path().name; }

}  // namespace ckpt
