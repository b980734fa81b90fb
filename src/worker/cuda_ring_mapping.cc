#include <utility>
#include <vector>

#include "base/strings.h"
#include "worker/ring_mapping.h"

namespace ckpt {
namespace {

class CudaRing final : public RingMapping {
 public:
  CudaRing(std::shared_ptr<Device> device, std::unique_ptr<DeviceBuffer> buffer,
           std::unique_ptr<CopyStream> stream)
      : device_(std::move(device)), buffer_(std::move(buffer)), stream_(std::move(stream)) {}

  const std::byte* data() const override { return buffer_->data(); }
  bool on_device() const override { return true; }
  std::uint64_t size() const override { return buffer_->size(); }

  Status take(std::span<RingPiece> pieces, bool sums, Deadline deadline) override {
    std::vector<DigestRequest> requests;
    for (const RingPiece& piece : pieces) {
      const std::byte* from = buffer_->data() + piece.ring_offset;
      if (sums) requests.push_back({from, piece.bytes});
      if (piece.destination == nullptr || piece.bytes == 0) continue;
      CKPT_RETURN_IF_ERROR(stream_->copy(piece.destination, from, piece.bytes));
    }
    std::vector<std::uint64_t> values(requests.size());
    if (sums) CKPT_RETURN_IF_ERROR(stream_->digest(requests, values.data()));
    CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, stream_->mark());
    AbortSignal never;
    CKPT_RETURN_IF_ERROR(stream_->wait(ticket, deadline, never));
    for (std::size_t i = 0; i < values.size(); ++i) pieces[i].sum = values[i];
    return Status::ok();
  }

 private:
  std::shared_ptr<Device> device_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::unique_ptr<CopyStream> stream_;  // ends before the memory it reads
};

}  // namespace

Result<std::unique_ptr<RingMapping>> open_cuda_ring(const BufferHandle& handle) {
  // The order of GPUs differs between processes: only the uuid counts.
  auto found = make_cuda_device(handle.device_uuid);
  if (!found) {
    return found.status().with_context(
        "the ring of this worker's rank; was the worker given the address of its own GPU?");
  }
  std::shared_ptr<Device> device = std::move(*found);
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, device->open(handle));
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> stream, device->make_stream());
  return std::unique_ptr<RingMapping>(
      std::make_unique<CudaRing>(std::move(device), std::move(buffer), std::move(stream)));
}

}  // namespace ckpt
