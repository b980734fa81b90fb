// One GPU as the CUDA runtime knows it, and how its errors become ours.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// Which GPU. Shared by a device, its buffers and its streams.
struct Gpu {
  int ordinal = 0;   ///< in this process' count
  std::string uuid;  ///< "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
  std::string name;
};

/// Makes the GPU current on this thread until the scope ends. Afterwards a thread that had another
/// GPU current has that again; one that had none keeps this one.
class GpuScope {
 public:
  explicit GpuScope(const Gpu& gpu);
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

 private:
  int before_ = -1;  // -1: nothing to restore
};

/// What `error` means for a caller, with CUDA's own words, the GPU and what was tried. Clears
/// CUDA's memory of the last error. ok for cudaSuccess.
Status cuda_status(cudaError_t error, std::string_view tried, const Gpu& gpu);

}  // namespace ckpt
