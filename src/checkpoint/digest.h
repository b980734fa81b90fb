// The content check: a position-sensitive 64-bit sum over a tensor's bytes. It finds corruption,
// not malice.
//
//   words w_i = the bytes as little-endian 64-bit words, the last one zero-padded
//   sum       = sum over i of mix(w_i xor (i + 1) * 0x9E3779B97F4A7C15)   modulo 2^64
//   mix(x)    = lo32(x) * hi32(x) + rotl(x, 32)
//   digest    = sum + splitmix64_finalizer(byte length)                    modulo 2^64
//
// A plain sum: any cut at 8-byte borders can be summed apart, on the CPU (SSE2, AVX2, AVX-512) and
// on a GPU alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ckpt {

/// Travels with every digest; a receiver that does not know the number refuses to verify.
inline constexpr std::uint32_t kDigestAlgorithm = 1;

/// Sum of `bytes` bytes whose first word has index `first_word` in its tensor. `data` needs no
/// alignment.
std::uint64_t digest_sum(const std::byte* data, std::size_t bytes, std::uint64_t first_word);
/// The same sum while copying to `to` (no overlap), with stores that bypass the cache for large
/// pieces.
std::uint64_t digest_copy(std::byte* to, const std::byte* from, std::size_t bytes,
                          std::uint64_t first_word);
/// From the sum over all words to the digest of a tensor of `bytes` bytes.
std::uint64_t digest_finish(std::uint64_t sum, std::uint64_t bytes);
std::uint64_t digest(std::span<const std::byte> tensor);

/// Name of the code path chosen for this processor: "avx512", "avx2", "sse2".
const char* digest_code_path();

}  // namespace ckpt
