#include "checkpoint/digest_paths.h"

#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ckpt {
namespace {

// How the words that were summed are stored.
enum class Store { kNone, kCached, kStreamed };

#if defined(__x86_64__)

// In all three: a shuffle that swaps the halves of x is rotl(x, 32), and the 32 x 32 bit multiply
// of x with it is lo32(x) * hi32(x). The chains from one round to the next are two additions, so
// one vector a round keeps ahead of memory.

template <Store kStore>
std::uint64_t lines_sse2(std::byte* to, const std::byte* from, std::size_t lines,
                         std::uint64_t first_word) {
  const auto at = [&](std::uint64_t i) {
    return static_cast<long long>((first_word + i + 1) * kDigestStep);
  };
  __m128i position = _mm_set_epi64x(at(1), at(0));
  const __m128i step = _mm_set1_epi64x(static_cast<long long>(2 * kDigestStep));
  __m128i sum = _mm_setzero_si128();
  for (std::size_t i = 0; i < lines * kDigestLine; i += 16) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    if constexpr (kStore == Store::kCached) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), words);
    } else if constexpr (kStore == Store::kStreamed) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), words);
    }
    const __m128i x = _mm_xor_si128(words, position);
    const __m128i swapped = _mm_shuffle_epi32(x, 0xB1);
    sum = _mm_add_epi64(sum, _mm_add_epi64(_mm_mul_epu32(x, swapped), swapped));
    position = _mm_add_epi64(position, step);
  }
  if constexpr (kStore == Store::kStreamed) _mm_sfence();
  alignas(16) std::uint64_t lanes[2];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes), sum);
  return lanes[0] + lanes[1];
}

template <Store kStore>
__attribute__((target("avx2"))) std::uint64_t lines_avx2(std::byte* to, const std::byte* from,
                                                         std::size_t lines,
                                                         std::uint64_t first_word) {
  alignas(32) std::uint64_t lanes[4];
  for (std::uint64_t i = 0; i < 4; ++i) lanes[i] = (first_word + i + 1) * kDigestStep;
  __m256i position = _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes));
  const __m256i step = _mm256_set1_epi64x(static_cast<long long>(4 * kDigestStep));
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t i = 0; i < lines * kDigestLine; i += 32) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    if constexpr (kStore == Store::kCached) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), words);
    } else if constexpr (kStore == Store::kStreamed) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), words);
    }
    const __m256i x = _mm256_xor_si256(words, position);
    const __m256i swapped = _mm256_shuffle_epi32(x, 0xB1);
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(_mm256_mul_epu32(x, swapped), swapped));
    position = _mm256_add_epi64(position, step);
  }
  if constexpr (kStore == Store::kStreamed) _mm_sfence();
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

template <Store kStore>
__attribute__((target("avx512f"))) std::uint64_t lines_avx512(std::byte* to, const std::byte* from,
                                                              std::size_t lines,
                                                              std::uint64_t first_word) {
  alignas(64) std::uint64_t lanes[8];
  for (std::uint64_t i = 0; i < 8; ++i) lanes[i] = (first_word + i + 1) * kDigestStep;
  __m512i position = _mm512_load_si512(lanes);
  const __m512i step = _mm512_set1_epi64(static_cast<long long>(8 * kDigestStep));
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < lines * kDigestLine; i += 64) {
    const __m512i words = _mm512_loadu_si512(from + i);
    if constexpr (kStore == Store::kCached) {
      _mm512_storeu_si512(to + i, words);
    } else if constexpr (kStore == Store::kStreamed) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), words);
    }
    const __m512i x = _mm512_xor_si512(words, position);
    // Masked forms with a full mask: g++ 12 warns of an uninitialised value inside the plain ones.
    const __m512i swapped = _mm512_maskz_shuffle_epi32(0xFFFF, x, _MM_PERM_CDAB);
    sum =
        _mm512_add_epi64(sum, _mm512_add_epi64(_mm512_maskz_mul_epu32(0xFF, x, swapped), swapped));
    position = _mm512_add_epi64(position, step);
  }
  if constexpr (kStore == Store::kStreamed) _mm_sfence();
  _mm512_store_si512(lanes, sum);
  std::uint64_t total = 0;
  for (const std::uint64_t lane : lanes) total += lane;
  return total;
}

std::vector<DigestPath> usable_paths() {
  std::vector<DigestPath> paths;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    paths.push_back({"avx512", lines_avx512<Store::kNone>, lines_avx512<Store::kCached>,
                     lines_avx512<Store::kStreamed>});
  }
  if (__builtin_cpu_supports("avx2")) {
    paths.push_back({"avx2", lines_avx2<Store::kNone>, lines_avx2<Store::kCached>,
                     lines_avx2<Store::kStreamed>});
  }
  paths.push_back(
      {"sse2", lines_sse2<Store::kNone>, lines_sse2<Store::kCached>, lines_sse2<Store::kStreamed>});
  return paths;
}

#else

template <Store kStore>
std::uint64_t lines_scalar(std::byte* to, const std::byte* from, std::size_t lines,
                           std::uint64_t first_word) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < lines * kDigestLine / 8; ++i) {
    std::uint64_t word;
    std::memcpy(&word, from + 8 * i, 8);
    if constexpr (kStore != Store::kNone) std::memcpy(to + 8 * i, &word, 8);
    sum += digest_term(word, first_word + i);
  }
  return sum;
}

std::vector<DigestPath> usable_paths() {
  return {{"scalar", lines_scalar<Store::kNone>, lines_scalar<Store::kCached>,
           lines_scalar<Store::kStreamed>}};
}

#endif

}  // namespace

std::span<const DigestPath> digest_paths() {
  static const std::vector<DigestPath> paths = usable_paths();
  return paths;
}

}  // namespace ckpt
