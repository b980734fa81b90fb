// What takes the place of the CUDA backend in a build without a CUDA toolkit.
#include "device/cuda/driver.h"
#include "device/device.h"

namespace ckpt {
namespace {

Status built_without_cuda() {
  return unsupported(
      "this program was built without CUDA: use --device host, or build it again where nvcc is on "
      "PATH (cmake -DCKPT_CUDA=ON makes a missing toolkit an error)");
}

}  // namespace

Result<std::shared_ptr<Device>> make_cuda_device(int) { return built_without_cuda(); }

Result<std::shared_ptr<Device>> make_cuda_device(const std::string&) {
  return built_without_cuda();
}

int cuda_device_count() { return 0; }

Result<int> find_gpus() { return 0; }

}  // namespace ckpt
