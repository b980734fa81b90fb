// The rank's ring, opened by the worker: where tensors are copied from and checked.
#pragma once

#include <cstddef>
#include <cstdint>
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

/// One thread uses it at a time. The destructor unmaps.
class RingMapping {
 public:
  /// Host rings are mapped; cuda rings are opened on the GPU with the handle's uuid.
  static Result<std::unique_ptr<RingMapping>> open(const BufferHandle& handle);

  virtual ~RingMapping() = default;
  virtual const std::byte* data() const = 0;
  virtual bool on_device() const = 0;  ///< data() is a pointer of the GPU
  virtual std::uint64_t size() const = 0;
  /// Copies each piece that has a destination and, with `sums`, fills the sum of every piece, of
  /// the very bytes that were copied. Complete on return.
  virtual Status take(std::span<RingPiece> pieces, bool sums, Deadline deadline) = 0;
};

Result<std::unique_ptr<RingMapping>> open_host_ring(const BufferHandle& handle);
Result<std::unique_ptr<RingMapping>> open_cuda_ring(const BufferHandle& handle);

}  // namespace ckpt
