// The rank's ring, opened by the worker: where tensors are copied from and checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "device/device.h"

namespace ckpt {

/// Bytes of the ring that are to be loaded; the caller has checked that they lie in it.
struct RingPiece {
  std::uint64_t ring_offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t first_word = 0;      ///< index of its first 8 bytes in its tensor
  std::byte* destination = nullptr;  ///< null: stays where it is
  std::uint64_t sum = 0;             ///< digest sum (checkpoint/digest.h), when asked for
};

/// Judges pieces whose sums are filled.
using SumCheck = std::function<Status(std::span<const RingPiece>)>;

/// One thread uses it at a time. The destructor unmaps.
class RingMapping {
 public:
  /// Host rings are mapped; cuda rings are opened on the GPU with the handle's uuid.
  static Result<std::unique_ptr<RingMapping>> open(const BufferHandle& handle);

  virtual ~RingMapping() = default;
  virtual const std::byte* data() const = 0;
  virtual bool on_device() const = 0;  ///< data() is a pointer of the GPU
  virtual std::uint64_t size() const = 0;
  /// Copies each piece that has a destination; complete on return. With a `check`, fills the sum
  /// of every piece and calls it once: what it refuses is the result. A ring on a device is checked
  /// before anything is copied: a refusal leaves the destinations as they were. A host ring is
  /// digested by the loop that copies it, since reading it twice would cost a second pass over
  /// memory: a refusal comes when the destinations are written already. The result is how many
  /// seconds the check took where it is a pass of its own, else 0.
  virtual Result<double> take(std::span<RingPiece> pieces, const SumCheck& check,
                              Deadline deadline) = 0;
};

Result<std::unique_ptr<RingMapping>> open_host_ring(const BufferHandle& handle);
Result<std::unique_ptr<RingMapping>> open_cuda_ring(const BufferHandle& handle);
/// `buffer` of `device` as a ring that `stream`, of the same device, reads.
std::unique_ptr<RingMapping> map_device_ring(std::shared_ptr<Device> device,
                                             std::unique_ptr<DeviceBuffer> buffer,
                                             std::unique_ptr<CopyStream> stream);

}  // namespace ckpt
