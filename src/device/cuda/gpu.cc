#include "device/cuda/gpu.h"

#include <cuda.h>

#include "base/strings.h"

namespace ckpt {
namespace {

StatusCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
      return StatusCode::kUnavailable;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorHostMemoryAlreadyRegistered:
      return StatusCode::kInvalidArgument;
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
      return StatusCode::kUnsupported;
    default:
      return StatusCode::kInternal;
  }
}

// The runtime calls device 0 current on a thread that never chose one. Going "back" to it would
// make a context there: half a GiB of the memory of a GPU that another rank works with. Only the
// driver knows better; it is asked by a pointer, since we do not link it.
bool thread_has_context() {
  static const auto get_current = []() -> decltype(&::cuCtxGetCurrent) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t error = ::cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 4000,
                                                                 cudaEnableDefault, &found);
#else
    const cudaError_t error =
        ::cudaGetDriverEntryPoint("cuCtxGetCurrent", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      ::cudaGetLastError();
      return nullptr;
    }
    return reinterpret_cast<decltype(&::cuCtxGetCurrent)>(function);
  }();
  CUcontext context = nullptr;
  return get_current != nullptr && get_current(&context) == CUDA_SUCCESS && context != nullptr;
}

}  // namespace

GpuScope::GpuScope(const Gpu& gpu) {
  int current = -1;
  const bool known = ::cudaGetDevice(&current) == cudaSuccess;
  if (thread_has_context()) {
    if (known && current == gpu.ordinal) return;
    before_ = current;
  }
  // A failure shows in the call that follows.
  if (::cudaSetDevice(gpu.ordinal) != cudaSuccess) ::cudaGetLastError();
}

GpuScope::~GpuScope() {
  if (before_ >= 0) ::cudaSetDevice(before_);
}

Status cuda_status(cudaError_t error, std::string_view tried, const Gpu& gpu) {
  if (error == cudaSuccess) return Status::ok();
  ::cudaGetLastError();
  return Status(code_of(error),
                concat(tried, " on ", gpu.uuid, " (", gpu.name, ", device ", gpu.ordinal,
                       "): ", ::cudaGetErrorString(error), " (", ::cudaGetErrorName(error), ")"));
}

}  // namespace ckpt
