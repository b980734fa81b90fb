#include "device/cuda/stream_parts.h"

#include <algorithm>
#include <bit>

namespace ckpt {
namespace {

// More than a lane has under way, so that it never makes one in the middle of an update.
constexpr int kEvents = 12;
constexpr std::size_t kSmallestBatch = 1024;

}  // namespace

Result<std::unique_ptr<GpuQueue>> GpuQueue::create(const Gpu& gpu) {
  std::unique_ptr<GpuQueue> queue(new GpuQueue);
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaStreamCreateWithFlags(&queue->stream_, cudaStreamNonBlocking),
                  "cudaStreamCreate", gpu));
  for (int i = 0; i < kEvents; ++i) {
    cudaEvent_t event = nullptr;
    CKPT_RETURN_IF_ERROR(cuda_status(::cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                     "cudaEventCreate", gpu));
    queue->events_.push_back(event);
  }
  return queue;
}

GpuQueue::~GpuQueue() {
  if (stream_ != nullptr) ::cudaStreamDestroy(stream_);
  for (const cudaEvent_t event : events_) ::cudaEventDestroy(event);
}

cudaEvent_t GpuQueue::take_event() {
  if (events_.empty()) return nullptr;
  const cudaEvent_t event = events_.back();
  events_.pop_back();
  return event;
}

StreamParts::~StreamParts() {
  const GpuScope scope(*gpu_);
  queues_.clear();
  batches_.clear();
}

Result<std::unique_ptr<GpuQueue>> StreamParts::take_queue() {
  return queues_.take([&] { return GpuQueue::create(*gpu_); });
}

Result<std::unique_ptr<DigestBatch>> StreamParts::take_batch(std::size_t tiles,
                                                             std::size_t requests) {
  return batches_.take([&](const DigestBatch& batch) { return batch.holds(tiles, requests); },
                       [](const DigestBatch& batch) { return batch.capacity(); },
                       [&] {
                         return DigestBatch::create(
                             *gpu_, std::bit_ceil(std::max(tiles, kSmallestBatch)),
                             std::bit_ceil(std::max(requests, kSmallestBatch)));
                       });
}

}  // namespace ckpt
