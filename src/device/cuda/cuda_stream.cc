#include "device/cuda/cuda_stream.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>

#include "base/strings.h"

namespace ckpt {
namespace {

// Between two looks at an event. A chunk of 32 MiB takes 0.6 ms.
constexpr std::chrono::microseconds kPollInterval{20};
constexpr std::size_t kSmallestBatch = 1024;

}  // namespace

Result<std::unique_ptr<CopyStream>> CudaStream::create(std::shared_ptr<const Gpu> gpu) {
  const GpuScope scope(*gpu);
  std::unique_ptr<CudaStream> stream(new CudaStream(gpu));
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaStreamCreateWithFlags(&stream->stream_, cudaStreamNonBlocking),
                  "cudaStreamCreate", *gpu));
  return std::unique_ptr<CopyStream>(std::move(stream));
}

CudaStream::~CudaStream() {
  const GpuScope scope(*gpu_);
  if (stream_ != nullptr) {
    ::cudaStreamSynchronize(stream_);
    ::cudaStreamDestroy(stream_);
  }
  for (const Mark& mark : marks_) ::cudaEventDestroy(mark.event);
  for (const cudaEvent_t event : free_events_) ::cudaEventDestroy(event);
  // Inside the scope, since they free device memory.
  pending_.clear();
  free_batches_.clear();
}

Status CudaStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes == 0) return Status::ok();
  const GpuScope scope(*gpu_);
  const cudaError_t error = ::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_);
  if (error == cudaSuccess) return Status::ok();
  return cuda_status(error, concat("queueing a copy of ", bytes, " bytes"), *gpu_);
}

Status CudaStream::digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) {
  if (requests.empty()) return Status::ok();
  const GpuScope scope(*gpu_);
  const std::vector<DigestTile> tiles = cut_into_tiles(requests);
  CKPT_ASSIGN_OR_RETURN(auto batch, take_batch(tiles.size(), requests.size()));
  const Status queued = batch->enqueue(*gpu_, tiles, requests.size(), stream_);
  // Kept also after an error: part of it may be queued.
  pending_.push_back(
      {last_ticket_ + 1, std::move(batch), queued.is_ok() ? sums : nullptr, requests.size()});
  return queued;
}

Result<std::unique_ptr<DigestBatch>> CudaStream::take_batch(std::size_t tiles,
                                                            std::size_t requests) {
  const auto fitting =
      std::find_if(free_batches_.begin(), free_batches_.end(),
                   [&](const auto& batch) { return batch->holds(tiles, requests); });
  if (fitting == free_batches_.end()) {
    return DigestBatch::create(*gpu_, std::bit_ceil(std::max(tiles, kSmallestBatch)),
                               std::bit_ceil(std::max(requests, kSmallestBatch)));
  }
  std::unique_ptr<DigestBatch> batch = std::move(*fitting);
  free_batches_.erase(fitting);
  return batch;
}

Result<CopyStream::Ticket> CudaStream::mark() {
  const GpuScope scope(*gpu_);
  cudaEvent_t event = nullptr;
  if (free_events_.empty()) {
    CKPT_RETURN_IF_ERROR(cuda_status(::cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                     "cudaEventCreate", *gpu_));
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  const Status recorded = cuda_status(::cudaEventRecord(event, stream_), "cudaEventRecord", *gpu_);
  if (!recorded.is_ok()) {
    free_events_.push_back(event);
    return recorded;
  }
  marks_.push_back({++last_ticket_, event});
  return last_ticket_;
}

Result<bool> CudaStream::reached(Ticket ticket) {
  if (ticket == 0 || ticket > last_ticket_) {
    return invalid_argument(
        concat("ticket ", ticket, " was never given by this stream (last: ", last_ticket_, ")"));
  }
  const GpuScope scope(*gpu_);
  while (!marks_.empty() && marks_.front().ticket <= ticket) {
    const Mark mark = marks_.front();
    const cudaError_t state = ::cudaEventQuery(mark.event);
    if (state == cudaErrorNotReady) {
      ::cudaGetLastError();
      return false;
    }
    CKPT_RETURN_IF_ERROR(cuda_status(state, "a queued copy or digest", *gpu_));
    marks_.pop_front();
    free_events_.push_back(mark.event);
    deliver_sums(mark.ticket);
  }
  return true;
}

void CudaStream::deliver_sums(Ticket ticket) {
  while (!pending_.empty() && pending_.front().ticket <= ticket) {
    PendingSums& done = pending_.front();
    if (done.sums != nullptr) std::copy_n(done.batch->sums(), done.count, done.sums);
    free_batches_.push_back(std::move(done.batch));
    pending_.pop_front();
  }
}

Status CudaStream::wait(Ticket ticket, Deadline deadline, AbortSignal& abort) {
  while (true) {
    CKPT_ASSIGN_OR_RETURN(const bool done, reached(ticket));
    if (done) return Status::ok();
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      return deadline_exceeded(
          concat("copies on ", gpu_->uuid, " (", gpu_->name, ") were not complete in time"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace ckpt
