// Host memory that the device copies from at full speed.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "checkpoint_engine/status.h"
#include "device/device.h"

namespace ckpt::bench {

class PinnedMemory {
 public:
  static Result<std::unique_ptr<PinnedMemory>> create(Device& device, std::uint64_t bytes) {
    std::unique_ptr<PinnedMemory> memory(new PinnedMemory);
    memory->data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
    if (memory->data_ == nullptr) return resource_exhausted("no memory to pin");
    std::memset(memory->data_.get(), 1, bytes);  // pinning untouched memory is slow
    CKPT_ASSIGN_OR_RETURN(memory->pin_, device.pin(memory->data_.get(), bytes));
    return memory;
  }

  std::byte* data() const { return data_.get(); }

 private:
  static constexpr std::size_t kPage = 2 << 20;
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  std::unique_ptr<std::byte, Free> data_;
  std::unique_ptr<PinnedRange> pin_;  // ends before the memory
};

}  // namespace ckpt::bench
