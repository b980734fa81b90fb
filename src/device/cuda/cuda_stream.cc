#include "device/cuda/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/strings.h"

namespace ckpt {
namespace {

// Between two looks at an event. A chunk of 32 MiB takes 0.6 ms.
constexpr std::chrono::microseconds kPollInterval{20};

}  // namespace

Result<std::unique_ptr<CopyStream>> CudaStream::create(std::shared_ptr<StreamParts> parts) {
  const GpuScope scope(parts->gpu());
  CKPT_ASSIGN_OR_RETURN(auto queue, parts->take_queue());
  return std::unique_ptr<CopyStream>(new CudaStream(std::move(parts), std::move(queue)));
}

CudaStream::~CudaStream() {
  const GpuScope scope(gpu());
  const bool drained = ::cudaStreamSynchronize(stream()) == cudaSuccess;
  if (!drained) ::cudaGetLastError();
  if (sound_ && drained && marks_.empty()) {
    for (PendingSums& pending : pending_) parts_->give_back(std::move(pending.batch));
    parts_->give_back(std::move(queue_));
    return;
  }
  for (const Mark& mark : marks_) ::cudaEventDestroy(mark.event);
  // Inside the scope, since they free device memory.
  pending_.clear();
  queue_.reset();
}

Status CudaStream::noted(Status status) {
  if (!status.is_ok()) sound_ = false;
  return status;
}

Status CudaStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes == 0) return Status::ok();
  const GpuScope scope(gpu());
  const cudaError_t error = ::cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream());
  if (error == cudaSuccess) return Status::ok();
  return noted(cuda_status(error, concat("queueing a copy of ", bytes, " bytes"), gpu()));
}

Status CudaStream::digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) {
  if (requests.empty()) return Status::ok();
  const GpuScope scope(gpu());
  const std::vector<DigestTile> tiles = cut_into_tiles(requests);
  CKPT_ASSIGN_OR_RETURN(auto batch, parts_->take_batch(tiles.size(), requests.size()));
  const Status queued = noted(batch->enqueue(gpu(), tiles, requests.size(), stream()));
  // Kept also after an error: part of it may be queued.
  pending_.push_back(
      {last_ticket_ + 1, std::move(batch), queued.is_ok() ? sums : nullptr, requests.size()});
  return queued;
}

Result<CopyStream::Ticket> CudaStream::mark() {
  const GpuScope scope(gpu());
  cudaEvent_t event = queue_->take_event();
  if (event == nullptr) {
    CKPT_RETURN_IF_ERROR(noted(cuda_status(
        ::cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", gpu())));
  }
  const Status recorded =
      noted(cuda_status(::cudaEventRecord(event, stream()), "cudaEventRecord", gpu()));
  if (!recorded.is_ok()) {
    queue_->give_back(event);
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
  const GpuScope scope(gpu());
  while (!marks_.empty() && marks_.front().ticket <= ticket) {
    const Mark mark = marks_.front();
    const cudaError_t state = ::cudaEventQuery(mark.event);
    if (state == cudaErrorNotReady) {
      ::cudaGetLastError();
      return false;
    }
    CKPT_RETURN_IF_ERROR(noted(cuda_status(state, "a queued copy or digest", gpu())));
    marks_.pop_front();
    queue_->give_back(mark.event);
    deliver_sums(mark.ticket);
  }
  return true;
}

void CudaStream::deliver_sums(Ticket ticket) {
  while (!pending_.empty() && pending_.front().ticket <= ticket) {
    PendingSums& done = pending_.front();
    if (done.sums != nullptr) std::copy_n(done.batch->sums(), done.count, done.sums);
    parts_->give_back(std::move(done.batch));
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
          concat("copies on ", gpu().uuid, " (", gpu().name, ") were not complete in time"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace ckpt
