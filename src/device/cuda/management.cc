#include "device/cuda/management.h"

#include "base/dynamic_library.h"

namespace ckpt {
namespace {

// NVML's public ABI, as far as it is used; a result of 0 is success.
using NvmlDevice = struct NvmlOpaque*;
struct NvmlMemory {
  unsigned long long total, free, used;
};

struct Nvml {
  int (*init)();
  int (*device_by_uuid)(const char* uuid, NvmlDevice* device);
  int (*memory_info)(NvmlDevice device, NvmlMemory* memory);
};

Result<Nvml> load_nvml() {
  CKPT_ASSIGN_OR_RETURN(const DynamicLibrary library, DynamicLibrary::open({"libnvidia-ml.so.1"}));
  Nvml nvml{};
  CKPT_ASSIGN_OR_RETURN(nvml.init, library.function<int()>("nvmlInit_v2"));
  CKPT_ASSIGN_OR_RETURN(
      nvml.device_by_uuid,
      (library.function<int(const char*, NvmlDevice*)>("nvmlDeviceGetHandleByUUID")));
  CKPT_ASSIGN_OR_RETURN(
      nvml.memory_info,
      (library.function<int(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo")));
  if (nvml.init() != 0) return unavailable("nvmlInit fails");
  return nvml;
}

}  // namespace

std::optional<std::uint64_t> used_device_memory(const std::string& uuid) {
  static const Result<Nvml> nvml = load_nvml();
  NvmlDevice device = nullptr;
  NvmlMemory memory{};
  if (!nvml || nvml->device_by_uuid(uuid.c_str(), &device) != 0 ||
      nvml->memory_info(device, &memory) != 0) {
    return std::nullopt;
  }
  return memory.used;
}

}  // namespace ckpt
