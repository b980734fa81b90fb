#include "device/cuda/digest_batch.h"

#include <algorithm>

namespace ckpt {

std::vector<DigestTile> cut_into_tiles(const std::vector<DigestRequest>& requests) {
  std::vector<DigestTile> tiles;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::uint64_t at = 0; at < requests[i].bytes; at += kDigestTileBytes) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kDigestTileBytes, requests[i].bytes - at);
      tiles.push_back({requests[i].data + at, requests[i].first_word + at / 8,
                       static_cast<std::uint32_t>(bytes), static_cast<std::uint32_t>(i)});
    }
  }
  return tiles;
}

Result<std::unique_ptr<DigestBatch>> DigestBatch::create(const Gpu& gpu, std::size_t tiles,
                                                         std::size_t requests) {
  std::unique_ptr<DigestBatch> batch(new DigestBatch);
  const std::size_t tile_bytes = tiles * sizeof(DigestTile);
  const std::size_t sum_bytes = requests * sizeof(std::uint64_t);
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaMallocHost(reinterpret_cast<void**>(&batch->host_), tile_bytes + sum_bytes),
                  "cudaMallocHost", gpu));
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaMalloc(reinterpret_cast<void**>(&batch->device_sums_), sum_bytes),
                  "cudaMalloc for digests", gpu));
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaDeviceGetAttribute(&batch->multiprocessors_, cudaDevAttrMultiProcessorCount,
                                           gpu.ordinal),
                  "cudaDeviceGetAttribute", gpu));
  batch->tile_capacity_ = tiles;
  batch->sum_capacity_ = requests;
  batch->host_tiles_ = reinterpret_cast<DigestTile*>(batch->host_);
  batch->host_sums_ = reinterpret_cast<std::uint64_t*>(batch->host_ + tile_bytes);
  return batch;
}

DigestBatch::~DigestBatch() {
  ::cudaFreeHost(host_);
  ::cudaFree(device_sums_);
}

Status DigestBatch::enqueue(const Gpu& gpu, const std::vector<DigestTile>& tiles,
                            std::size_t requests, cudaStream_t stream) {
  std::copy(tiles.begin(), tiles.end(), host_tiles_);
  const std::size_t sum_bytes = requests * sizeof(std::uint64_t);
  CKPT_RETURN_IF_ERROR(
      cuda_status(launch_digest(host_tiles_, static_cast<std::uint32_t>(tiles.size()), device_sums_,
                                static_cast<std::uint32_t>(requests), multiprocessors_, stream),
                  "starting the digest kernel", gpu));
  return cuda_status(
      ::cudaMemcpyAsync(host_sums_, device_sums_, sum_bytes, cudaMemcpyDeviceToHost, stream),
      "copying the digest's sums", gpu);
}

}  // namespace ckpt
