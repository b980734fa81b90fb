#include "base/bulk_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ckpt {

#if defined(__SSE2__)
namespace {

constexpr std::size_t kLine = 64;
// Below this the destination is likely to be read soon, out of the cache.
constexpr std::size_t kStreamFrom = 256 << 10;

void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + i);
    auto* out = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // streaming stores are weakly ordered: a later release store must not pass them
}

}  // namespace

void bulk_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;  // null is allowed here, but not for memcpy
  if (bytes < kStreamFrom) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine * kLine;
  stream_lines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, bytes - head - lines);
}
#else
void bulk_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
#endif

}  // namespace ckpt
