// What the streams of one GPU are made of, which goes from one to the next.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda/digest_batch.h"
#include "device/cuda/gpu.h"
#include "device/reusables.h"

namespace ckpt {

/// A stream of CUDA with the events that mark points in it. The GPU must be current.
class GpuQueue {
 public:
  static Result<std::unique_ptr<GpuQueue>> create(const Gpu& gpu);
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// Null when all are in use.
  cudaEvent_t take_event();
  void give_back(cudaEvent_t event) { events_.push_back(event); }

 private:
  GpuQueue() = default;

  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

/// Any thread.
class StreamParts {
 public:
  explicit StreamParts(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~StreamParts();

  const Gpu& gpu() const { return *gpu_; }
  Result<std::unique_ptr<GpuQueue>> take_queue();
  void give_back(std::unique_ptr<GpuQueue> queue) { queues_.give_back(std::move(queue)); }
  /// For a call with so many tiles and requests.
  Result<std::unique_ptr<DigestBatch>> take_batch(std::size_t tiles, std::size_t requests);
  void give_back(std::unique_ptr<DigestBatch> batch) { batches_.give_back(std::move(batch)); }
  std::uint64_t made() const { return queues_.made() + batches_.made(); }

 private:
  const std::shared_ptr<const Gpu> gpu_;
  Reusables<GpuQueue> queues_;
  Reusables<DigestBatch> batches_;
};

}  // namespace ckpt
