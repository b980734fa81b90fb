// A CUDA stream as a CopyStream.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <vector>

#include "device/cuda/digest_batch.h"
#include "device/cuda/gpu.h"
#include "device/device.h"

namespace ckpt {

class CudaStream final : public CopyStream {
 public:
  static Result<std::unique_ptr<CopyStream>> create(std::shared_ptr<const Gpu> gpu);
  ~CudaStream() override;

  void* native_handle() override { return stream_; }
  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  Status digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) override;
  Result<Ticket> mark() override;
  Result<bool> reached(Ticket ticket) override;
  Status wait(Ticket ticket, Deadline deadline, AbortSignal& abort) override;

 private:
  struct Mark {
    Ticket ticket;
    cudaEvent_t event;
  };
  /// Sums on their way: they are there when `ticket` is reached.
  struct PendingSums {
    Ticket ticket;
    std::unique_ptr<DigestBatch> batch;
    std::uint64_t* sums;
    std::size_t count;
  };

  explicit CudaStream(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {}
  Result<std::unique_ptr<DigestBatch>> take_batch(std::size_t tiles, std::size_t requests);
  void deliver_sums(Ticket ticket);

  const std::shared_ptr<const Gpu> gpu_;
  cudaStream_t stream_ = nullptr;
  Ticket last_ticket_ = 0;
  std::deque<Mark> marks_;  // not seen as reached yet
  std::vector<cudaEvent_t> free_events_;
  std::deque<PendingSums> pending_;
  std::vector<std::unique_ptr<DigestBatch>> free_batches_;
};

}  // namespace ckpt
