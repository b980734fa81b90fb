// The inner loops of the digest, one set per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/digest_arithmetic.h"

namespace ckpt {

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

}  // namespace ckpt
