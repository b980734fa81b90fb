// Filling a host pool: parallel reads and copies, digests in the same pass, pieces pinned as they
// become full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "memory/host_pool.h"
#include "memory/tensor_sums.h"

namespace ckpt {

/// Where a tensor goes, or where it lies already. Whole in one segment of the pool.
struct PoolTensor {
  std::string name;  ///< for messages
  std::uint64_t bytes = 0;
  std::uint64_t pool_offset = 0;
};

/// Bytes of a tensor in a file.
struct FileSource {
  std::string path;
  std::uint64_t file_offset = 0;
};

struct LoadOptions {
  Deadline deadline;
  AbortSignal* abort = nullptr;
  Device* pin = nullptr;  ///< every piece is pinned for it as soon as it is full
  int threads = 0;        ///< 0: one for each processor of this process, at most 16
  /// Bytes done so far, now and then and at the end; from any thread, never from two at once. Must
  /// not block.
  std::function<void(std::uint64_t bytes_done)> progress;
};

/// All of these fill a pool that nobody reads yet, and return the digest sums of the tensors in the
/// order given. Tensors must not overlap, but need not be sorted. After an error (kAborted's cause,
/// kDeadlineExceeded, kIo, kDataLoss) the pool's content is undefined and pinned pieces stay
/// pinned.

/// Reads `sources[i]` into `tensors[i]`. A file that ends too early is kDataLoss with file, tensor
/// and offsets.
Result<TensorSums> load_files(HostPool& pool, std::span<const PoolTensor> tensors,
                              std::span<const FileSource> sources, const LoadOptions& options);
/// Copies `sources[i]` (CPU memory of `tensors[i].bytes` bytes) into `tensors[i]`.
Result<TensorSums> load_memory(HostPool& pool, std::span<const PoolTensor> tensors,
                               std::span<const std::byte* const> sources,
                               const LoadOptions& options);
/// Copies `sources[i]` (memory of `device`) into `tensors[i]` at the speed of its copy engines,
/// into pieces that are pinned for it whether LoadOptions::pin says so or not, and digests it where
/// it lies, or, where the device cannot (Device::digests), in the pool.
Result<TensorSums> load_device(HostPool& pool, std::span<const PoolTensor> tensors,
                               std::span<const std::byte* const> sources, Device& device,
                               const LoadOptions& options);
/// Digests tensors that lie in the pool: those of files that are used in place.
Result<TensorSums> digest_in_place(HostPool& pool, std::span<const PoolTensor> tensors,
                                   const LoadOptions& options);

}  // namespace ckpt
