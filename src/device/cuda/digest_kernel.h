// Digest sums of device memory at the speed of that memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ckpt {

/// What one thread block sums: at most kDigestTileBytes of one request.
struct DigestTile {
  const std::byte* data;
  std::uint64_t first_word;  ///< index of its first word in the request
  std::uint32_t bytes;
  std::uint32_t request;  ///< index of the sum that it is added to
};

/// A multiple of 16, so that the tiles of a request are aligned as the request is.
inline constexpr std::uint32_t kDigestTileBytes = 128 << 10;

/// Queues the sums of `count` tiles (pinned host memory, or the device's) on `stream`: `sum_count`
/// of them, at least one, into `sums` (device memory). Without a copy to the device, which would
/// wait until the copy engine has nothing else to do. At full speed for data at 16-byte steps; at a
/// fraction of it otherwise.
cudaError_t launch_digest(const DigestTile* tiles, std::uint32_t count, std::uint64_t* sums,
                          std::uint32_t sum_count, int multiprocessors, cudaStream_t stream);

}  // namespace ckpt
