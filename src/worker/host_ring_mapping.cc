#include <utility>

#include "base/bulk_copy.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "worker/ring_mapping.h"

namespace ckpt {
namespace {

class HostRing final : public RingMapping {
 public:
  HostRing(SharedMemory memory, std::uint64_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  const std::byte* data() const override { return memory_.data(); }
  bool on_device() const override { return false; }
  std::uint64_t size() const override { return bytes_; }

  Result<double> take(std::span<RingPiece> pieces, const SumCheck& check, Deadline) override {
    for (RingPiece& piece : pieces) {
      if (piece.bytes == 0) continue;
      const std::byte* from = memory_.data() + piece.ring_offset;
      if (check && piece.destination != nullptr) {
        piece.sum = digest_copy(piece.destination, from, piece.bytes, piece.first_word);
      } else if (check) {
        piece.sum = digest_sum(from, piece.bytes, piece.first_word);
      } else if (piece.destination != nullptr) {
        bulk_copy(piece.destination, from, piece.bytes);
      }
    }
    if (check) CKPT_RETURN_IF_ERROR(check(pieces));
    return 0.0;
  }

 private:
  SharedMemory memory_;
  std::uint64_t bytes_;
};

}  // namespace

Result<std::unique_ptr<RingMapping>> open_host_ring(const BufferHandle& handle) {
  CKPT_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::open(handle.shared_memory));
  if (memory.size() < handle.bytes) {
    return protocol_error(concat("the ring has ", handle.bytes, " bytes by its rank's word, but ",
                                 memory.path(), " has ", memory.size()));
  }
  return std::unique_ptr<RingMapping>(std::make_unique<HostRing>(std::move(memory), handle.bytes));
}

Result<std::unique_ptr<RingMapping>> RingMapping::open(const BufferHandle& handle) {
  return handle.kind == DeviceKind::kCuda ? open_cuda_ring(handle) : open_host_ring(handle);
}

}  // namespace ckpt
