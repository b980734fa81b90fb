#include "transport/seal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ckpt {

std::uint64_t seal_of(std::span<const std::byte> bytes, std::string_view bound_to) {
  const std::uint64_t seed = XXH3_64bits(bound_to.data(), bound_to.size());
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace ckpt
