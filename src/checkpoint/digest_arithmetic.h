// The digest's arithmetic (digest.h), for processors and GPUs: CUDA code includes this header, as
// C++17.
#pragma once

#include <cstdint>

namespace ckpt {

/// (i + 1) times this is mixed into word i.
inline constexpr std::uint64_t kDigestStep = 0x9E3779B97F4A7C15;

/// mix() of design section 8.
constexpr std::uint64_t digest_mix(std::uint64_t x) {
  return (x & 0xFFFFFFFF) * (x >> 32) + (x << 32 | x >> 32);
}

/// One term of the sum.
constexpr std::uint64_t digest_term(std::uint64_t word, std::uint64_t index) {
  return digest_mix(word ^ (index + 1) * kDigestStep);
}

}  // namespace ckpt
