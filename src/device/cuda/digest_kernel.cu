#include <algorithm>

#include "checkpoint/digest_arithmetic.h"
#include "device/cuda/digest_kernel.h"

namespace ckpt {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kBlocksPerMultiprocessor = 8;

// A word of which only `bytes` bytes are there, at any alignment.
__device__ std::uint64_t read_bytes(const std::byte* data, std::uint32_t bytes) {
  std::uint64_t word = 0;
  for (std::uint32_t i = 0; i < 8 && i < bytes; ++i) {
    word |= static_cast<std::uint64_t>(data[i]) << (8 * i);
  }
  return word;
}

// This thread's share of the words from `word` on, read byte by byte.
__device__ std::uint64_t sum_bytewise(const DigestTile& tile, std::uint32_t word) {
  std::uint64_t sum = 0;
  for (word += threadIdx.x; word * 8 < tile.bytes; word += kThreads) {
    sum += digest_term(read_bytes(tile.data + word * 8, tile.bytes - word * 8),
                       tile.first_word + word);
  }
  return sum;
}

__device__ std::uint64_t sum_aligned(const DigestTile& tile) {
  const auto* vectors = reinterpret_cast<const ulonglong2*>(tile.data);
  const std::uint32_t count = tile.bytes / sizeof(ulonglong2);
  // Carried along instead of multiplied anew: the multiply of two halves is the costly part.
  std::uint64_t position = (tile.first_word + 2 * threadIdx.x + 1) * kDigestStep;
  std::uint64_t sum = 0;
#pragma unroll 8
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const ulonglong2 words = __ldcs(vectors + i);
    sum += digest_mix(words.x ^ position) + digest_mix(words.y ^ (position + kDigestStep));
    position += 2 * kThreads * kDigestStep;
  }
  return sum + sum_bytewise(tile, 2 * count);
}

__global__ void clear_sums(unsigned long long* sums, std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) sums[i] = 0;
}

__global__ void __launch_bounds__(kThreads)
    digest_tiles(const DigestTile* tiles, std::uint32_t count, unsigned long long* sums) {
  __shared__ std::uint64_t of_warp[kThreads / kWarp];
  __shared__ DigestTile tile;
  for (std::uint32_t t = blockIdx.x; t < count; t += gridDim.x) {
    if (threadIdx.x == 0) tile = tiles[t];  // over PCIe, so only once
    __syncthreads();
    const bool aligned = reinterpret_cast<std::uintptr_t>(tile.data) % sizeof(ulonglong2) == 0;
    std::uint64_t sum = aligned ? sum_aligned(tile) : sum_bytewise(tile, 0);
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      std::uint64_t total = 0;
      for (const std::uint64_t part : of_warp) total += part;
      atomicAdd(sums + tile.request, static_cast<unsigned long long>(total));
    }
    __syncthreads();  // both are written again for the next tile
  }
}

}  // namespace

cudaError_t launch_digest(const DigestTile* tiles, std::uint32_t count, std::uint64_t* sums,
                          std::uint32_t sum_count, int multiprocessors, cudaStream_t stream) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  auto* const out = reinterpret_cast<unsigned long long*>(sums);
  clear_sums<<<(sum_count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(out, sum_count);
  if (count == 0) return ::cudaGetLastError();
  const auto blocks = std::min<std::uint32_t>(
      count, static_cast<std::uint32_t>(std::max(1, multiprocessors)) * kBlocksPerMultiprocessor);
  digest_tiles<<<blocks, kThreads, 0, stream>>>(tiles, count, out);
  return ::cudaGetLastError();
}

}  // namespace ckpt
