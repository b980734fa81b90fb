// Memory of GPUs that reads go into.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "transport/ucx/context.h"

namespace ckpt::ucx {

/// One of them. Network devices write to it by themselves; what has arrived in memory of the host
/// (small data, the end of a read) goes there through the stream.
class DeviceMemory {
 public:
  /// `pinned`: by Context::pin_device; empty where no network device wants it. On the thread that
  /// will write: CUDA has the GPU current there from then on, as UCX wants it.
  static Result<std::shared_ptr<DeviceMemory>> open(Device& device,
                                                    std::shared_ptr<Context> context,
                                                    std::vector<ucp_mem*> pinned);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Returns when the bytes are there. One thread.
  Status write(void* to, const std::byte* from, std::uint64_t bytes);

 private:
  DeviceMemory(std::shared_ptr<Context> context, std::vector<ucp_mem*> pinned)
      : context_(std::move(context)), pinned_(std::move(pinned)) {}

  const std::shared_ptr<Context> context_;
  const std::vector<ucp_mem*> pinned_;
  std::unique_ptr<CopyStream> stream_;
};

/// By address. All methods from any thread.
class Destinations {
 public:
  void add(const std::byte* data, std::uint64_t bytes, std::shared_ptr<DeviceMemory> memory);
  void remove(const std::byte* data);
  /// Null: memory of the host.
  std::shared_ptr<DeviceMemory> at(const void* destination) const;

 private:
  struct Range {
    std::uint64_t bytes;
    std::shared_ptr<DeviceMemory> memory;
  };
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::map<const std::byte*, Range> ranges_;  // guarded by mutex_
};

}  // namespace ckpt::ucx
