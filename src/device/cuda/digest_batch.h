// The memory of one digest call: its table of tiles and its sums, on the host and on the GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda/digest_kernel.h"
#include "device/cuda/gpu.h"
#include "device/device.h"

namespace ckpt {

/// Made once and used again for calls that are not larger: allocating and freeing would stall the
/// device. Not thread-safe; the GPU must be current.
class DigestBatch {
 public:
  /// For calls with up to `tiles` tiles and `requests` sums.
  static Result<std::unique_ptr<DigestBatch>> create(const Gpu& gpu, std::size_t tiles,
                                                     std::size_t requests);
  ~DigestBatch();
  DigestBatch(const DigestBatch&) = delete;
  DigestBatch& operator=(const DigestBatch&) = delete;

  bool holds(std::size_t tiles, std::size_t requests) const {
    return tiles <= tile_capacity_ && requests <= sum_capacity_;
  }
  std::size_t capacity() const { return tile_capacity_ + sum_capacity_; }
  /// Queues the kernel with its copies. Afterwards, once the stream is past it, sums() has
  /// `requests` sums.
  Status enqueue(const Gpu& gpu, const std::vector<DigestTile>& tiles, std::size_t requests,
                 cudaStream_t stream);
  const std::uint64_t* sums() const { return host_sums_; }

 private:
  DigestBatch() = default;

  std::size_t tile_capacity_ = 0, sum_capacity_ = 0;
  int multiprocessors_ = 1;
  std::byte* host_ = nullptr;  // pinned: the kernel reads the tiles from here
  DigestTile* host_tiles_ = nullptr;
  std::uint64_t* host_sums_ = nullptr;
  std::uint64_t* device_sums_ = nullptr;
};

/// The tiles of all requests.
std::vector<DigestTile> cut_into_tiles(const std::vector<DigestRequest>& requests);

}  // namespace ckpt
