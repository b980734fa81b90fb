// A CUDA stream as a CopyStream.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <vector>

#include "device/cuda/stream_parts.h"
#include "device/device.h"

namespace ckpt {

class CudaStream final : public CopyStream {
 public:
  static Result<std::unique_ptr<CopyStream>> create(std::shared_ptr<StreamParts> parts);
  /// Its parts go to the next stream, unless a call has failed or marked work was never seen
  /// complete: after that nobody knows what state they are in.
  ~CudaStream() override;

  void* native_handle() override { return stream(); }
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

  CudaStream(std::shared_ptr<StreamParts> parts, std::unique_ptr<GpuQueue> queue)
      : parts_(std::move(parts)), queue_(std::move(queue)) {}
  cudaStream_t stream() const { return queue_->stream(); }
  const Gpu& gpu() const { return parts_->gpu(); }
  Status noted(Status status);
  void deliver_sums(Ticket ticket);

  const std::shared_ptr<StreamParts> parts_;
  std::unique_ptr<GpuQueue> queue_;
  bool sound_ = true;  // no call has failed
  Ticket last_ticket_ = 0;
  std::deque<Mark> marks_;  // not seen as reached yet
  std::deque<PendingSums> pending_;
};

}  // namespace ckpt
