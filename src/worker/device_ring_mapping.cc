#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "worker/ring_mapping.h"

namespace ckpt {
namespace {

class DeviceRing final : public RingMapping {
 public:
  DeviceRing(std::shared_ptr<Device> device, std::unique_ptr<DeviceBuffer> buffer,
             std::unique_ptr<CopyStream> stream)
      : device_(std::move(device)), buffer_(std::move(buffer)), stream_(std::move(stream)) {}

  const std::byte* data() const override { return buffer_->data(); }
  bool on_device() const override { return device_->kind() == DeviceKind::kCuda; }
  std::uint64_t size() const override { return buffer_->size(); }

  Result<double> take(std::span<RingPiece> pieces, const SumCheck& check,
                      Deadline deadline) override {
    std::chrono::duration<double> checking{0};
    if (check) {
      const auto begin = std::chrono::steady_clock::now();
      CKPT_RETURN_IF_ERROR(digest(pieces, deadline));
      CKPT_RETURN_IF_ERROR(check(pieces));
      checking = std::chrono::steady_clock::now() - begin;
    }
    for (const RingPiece& piece : pieces) {
      if (piece.destination == nullptr || piece.bytes == 0) continue;
      CKPT_RETURN_IF_ERROR(
          stream_->copy(piece.destination, buffer_->data() + piece.ring_offset, piece.bytes));
    }
    CKPT_RETURN_IF_ERROR(drain(deadline));
    return checking.count();
  }

 private:
  Status digest(std::span<RingPiece> pieces, Deadline deadline) {
    std::vector<DigestRequest> requests;
    for (const RingPiece& piece : pieces) {
      requests.push_back({buffer_->data() + piece.ring_offset, piece.bytes, piece.first_word});
    }
    std::vector<std::uint64_t> sums(requests.size());
    CKPT_RETURN_IF_ERROR(stream_->digest(requests, sums.data()));
    CKPT_RETURN_IF_ERROR(drain(deadline));
    for (std::size_t i = 0; i < sums.size(); ++i) pieces[i].sum = sums[i];
    return Status::ok();
  }

  Status drain(Deadline deadline) {
    CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, stream_->mark());
    AbortSignal never;
    return stream_->wait(ticket, deadline, never);
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::unique_ptr<CopyStream> stream_;  // ends before the memory it reads
};

// The order of GPUs differs between processes: only the uuid counts. What the streams of a GPU are
// made of is there for the next update; it goes with the process, since statics may end after CUDA.
Result<std::shared_ptr<Device>> receiving_gpu(const std::string& uuid) {
  static std::mutex mutex;
  static auto* const gpus = new std::map<std::string, std::shared_ptr<Device>>;
  const std::lock_guard lock(mutex);
  const auto known = gpus->find(uuid);
  if (known != gpus->end()) return known->second;
  CKPT_ASSIGN_OR_RETURN(std::shared_ptr<Device> found, make_cuda_device(uuid));
  return gpus->emplace(uuid, std::move(found)).first->second;
}

}  // namespace

std::unique_ptr<RingMapping> map_device_ring(std::shared_ptr<Device> device,
                                             std::unique_ptr<DeviceBuffer> buffer,
                                             std::unique_ptr<CopyStream> stream) {
  return std::make_unique<DeviceRing>(std::move(device), std::move(buffer), std::move(stream));
}

Result<std::unique_ptr<RingMapping>> open_cuda_ring(const BufferHandle& handle) {
  auto found = receiving_gpu(handle.device_uuid);
  if (!found) {
    return found.status().with_context(
        "the ring of this worker's rank; was the worker given the address of its own GPU?");
  }
  std::shared_ptr<Device> device = std::move(*found);
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, device->open(handle));
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> stream, device->make_stream());
  return map_device_ring(std::move(device), std::move(buffer), std::move(stream));
}

}  // namespace ckpt
