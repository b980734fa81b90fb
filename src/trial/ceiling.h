// What the machine can do, measured in the same run.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "trial/pinned_memory.h"

namespace ckpt::bench {

/// Copies from pinned host memory to the device.
class Upload {
 public:
  /// Allocates on both sides.
  static Result<std::unique_ptr<Upload>> create(Device& device);
  /// GB/s of copies of `chunk` bytes, a few queued at a time, for about `seconds`.
  Result<double> measure(std::uint64_t chunk, double seconds);
  /// The same from the buffer of another process.
  Result<double> measure_peer(const BufferHandle& handle, std::uint64_t chunk, double seconds);
  BufferHandle handle() const { return to_->handle(); }
  /// The same from the device.
  Result<double> measure_back(std::uint64_t chunk, double seconds);

 private:
  Device* device_ = nullptr;
  std::unique_ptr<PinnedMemory> from_;
  std::unique_ptr<DeviceBuffer> to_;
  std::unique_ptr<CopyStream> stream_;
};

}  // namespace ckpt::bench
