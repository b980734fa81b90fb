// How much device memory something takes at its peak.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "device/device.h"

namespace ckpt::bench {

/// The least free memory of a device while it lives.
class MemoryWatch {
 public:
  explicit MemoryWatch(Device& device) : thread_([this, &device] { watch(device); }) {}
  ~MemoryWatch() { least(); }

  std::uint64_t least() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return least_;
  }

 private:
  void watch(Device& device) {
    while (!stop_) {
      if (const auto memory = device.memory()) least_ = std::min(least_, memory->free_bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::atomic<bool> stop_ = false;
  std::uint64_t least_ = UINT64_MAX;
  std::thread thread_;
};

}  // namespace ckpt::bench
