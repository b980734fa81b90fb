// The inner loops of the digest, one set per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

/// (i + 1) times this is mixed into word i.
inline constexpr std::uint64_t kDigestStep = 0x9E3779B97F4A7C15;
/// Kernels take whole lines.
inline constexpr std::size_t kDigestLine = 64;

/// The sum over `lines` lines at `from`, whose first word has index `first_word`; a copying kernel
/// stores them at `to` as well.
using DigestKernel = std::uint64_t (*)(std::byte* to, const std::byte* from, std::size_t lines,
                                       std::uint64_t first_word);

struct DigestPath {
  const char* name;
  DigestKernel sum;     ///< `to` is not used
  DigestKernel copy;    ///< any alignment
  DigestKernel stream;  ///< stores bypass the cache; `to` is a multiple of kDigestLine
};

/// Those that this processor can run, the fastest first; at least one. Any thread.
std::span<const DigestPath> digest_paths();

/// mix() of design section 8: one term of the sum.
inline std::uint64_t digest_term(std::uint64_t word, std::uint64_t index) {
  const std::uint64_t x = word ^ (index + 1) * kDigestStep;
  return (x & 0xFFFFFFFF) * (x >> 32) + (x << 32 | x >> 32);
}

}  // namespace ckpt
