#include "device/cuda/driver.h"

#include <cuda_runtime_api.h>

#include <fstream>
#include <string>

#include "base/strings.h"

namespace ckpt {
namespace {

/// "580.159.04", or nothing where the kernel does not say.
std::string kernel_driver_version() {
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  return version;
}

std::string cuda_version(int version) {
  return concat("CUDA ", version / 1000, ".", version % 1000 / 10);
}

/// The oldest driver that runs programs of this major version of CUDA.
std::string needed_driver() {
  constexpr int kMajor = CUDART_VERSION / 1000;
  return concat("a driver for CUDA ", kMajor,
                kMajor == 13   ? " (580 or newer)"
                : kMajor == 12 ? " (525 or newer)"
                               : "");
}

}  // namespace

Result<int> find_gpus() {
  int count = 0;
  const cudaError_t error = ::cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  ::cudaGetLastError();
  if (error == cudaErrorNoDevice || error == cudaErrorStubLibrary) return 0;
  int driver = 0;
  ::cudaDriverGetVersion(&driver);  // stays 0 without a driver
  if (error == cudaErrorInsufficientDriver && driver == 0) return 0;
  const std::string kernel = kernel_driver_version();
  const std::string found =
      concat("the NVIDIA driver", kernel.empty() ? "" : " ", kernel,
             driver == 0 ? "" : concat(", which is for ", cuda_version(driver)));
  if (error == cudaErrorInsufficientDriver) {
    return unavailable(concat(found, ", is too old: this program needs ", needed_driver(),
                              "; update the driver, or use --device host"));
  }
  return unavailable(concat(found, ", does not work: ", ::cudaGetErrorString(error), " (",
                            ::cudaGetErrorName(error),
                            "); see whether nvidia-smi works here, or use --device host"));
}

}  // namespace ckpt
