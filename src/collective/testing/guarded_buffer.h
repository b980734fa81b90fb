// Device memory of a test that notices writes where nobody may write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/device.h"

namespace ckpt::testing {

/// A buffer between two strips that nobody may write to. Fresh, it holds no zeros.
class GuardedBuffer {
 public:
  GuardedBuffer(Device& device, std::uint64_t bytes);

  /// Where data() begins in what another process opens.
  static constexpr std::uint64_t kOffset = 512;

  std::byte* data() const;
  BufferHandle handle() const { return buffer_->handle(); }
  void close_to_others() { buffer_->close_to_others(); }
  std::uint64_t bytes() const { return bytes_; }
  bool guards_hold();
  /// From now on nobody may write to the buffer either.
  void paint_canary();
  bool canary_holds();

 private:
  void paint(std::byte* at, std::uint64_t bytes, std::byte color);
  bool holds(const std::byte* at, std::uint64_t bytes, std::byte color);
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes);

  std::unique_ptr<CopyStream> stream_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::uint64_t bytes_;
};

}  // namespace ckpt::testing
