// A GPU as a device: plain cudaMalloc, CUDA IPC, registered host memory.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/driver.h"
#include "device/cuda/gpu.h"
#include "device/cuda/management.h"
#include "device/device.h"

namespace ckpt {
namespace {

// A smaller cudaMalloc shares its block with others of this process, and an IPC handle opens whole
// blocks.
constexpr std::uint64_t kBlockBytes = 2 << 20;

class OwnedBuffer final : public DeviceBuffer {
 public:
  OwnedBuffer(std::shared_ptr<const Gpu> gpu, void* data, std::uint64_t bytes,
              const cudaIpcMemHandle_t& ipc)
      : gpu_(std::move(gpu)), data_(static_cast<std::byte*>(data)), bytes_(bytes), ipc_(ipc) {}
  ~OwnedBuffer() override {
    const GpuScope scope(*gpu_);
    ::cudaFree(data_);
  }

  std::byte* data() const override { return data_; }
  std::uint64_t size() const override { return bytes_; }
  BufferHandle handle() const override {
    const auto* bytes = reinterpret_cast<const std::byte*>(&ipc_);
    return {.kind = DeviceKind::kCuda,
            .bytes = bytes_,
            .ipc = std::vector<std::byte>(bytes, bytes + sizeof(ipc_)),
            .device_uuid = gpu_->uuid};
  }
  // CUDA cannot take a handle back while the memory lives; it reaches processes of the same user
  // only.
  void close_to_others() override {}

 private:
  const std::shared_ptr<const Gpu> gpu_;
  std::byte* const data_;
  const std::uint64_t bytes_;
  const cudaIpcMemHandle_t ipc_;
};

class OpenedBuffer final : public DeviceBuffer {
 public:
  OpenedBuffer(std::shared_ptr<const Gpu> gpu, void* data, BufferHandle handle)
      : gpu_(std::move(gpu)), data_(static_cast<std::byte*>(data)), handle_(std::move(handle)) {}
  ~OpenedBuffer() override {
    const GpuScope scope(*gpu_);
    ::cudaIpcCloseMemHandle(data_);
  }

  std::byte* data() const override { return data_; }
  std::uint64_t size() const override { return handle_.bytes; }
  BufferHandle handle() const override { return handle_; }
  void close_to_others() override {}

 private:
  const std::shared_ptr<const Gpu> gpu_;  // on which it was opened, not where it lies
  std::byte* const data_;
  const BufferHandle handle_;
};

class RegisteredRange final : public PinnedRange {
 public:
  RegisteredRange(std::shared_ptr<const Gpu> gpu, std::byte* data)
      : gpu_(std::move(gpu)), data_(data) {}
  ~RegisteredRange() override {
    const GpuScope scope(*gpu_);
    ::cudaHostUnregister(data_);
  }

 private:
  const std::shared_ptr<const Gpu> gpu_;
  std::byte* const data_;
};

class CurrentGpu final : public CurrentDevice {
 public:
  explicit CurrentGpu(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)), scope_(*gpu_) {}

 private:
  const std::shared_ptr<const Gpu> gpu_;
  const GpuScope scope_;
};

// What kind of memory `data` is. Asking takes a context on the current GPU of the thread.
std::optional<cudaPointerAttributes> attributes_of(const std::byte* data, const Gpu& gpu) {
  const GpuScope scope(gpu);
  cudaPointerAttributes attributes{};
  if (::cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    ::cudaGetLastError();
    return std::nullopt;
  }
  return attributes;
}

std::string format_uuid(const cudaUUID_t& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

int numa_node_of(int ordinal) {
  char address[32] = {};
  if (::cudaDeviceGetPCIBusId(address, sizeof(address), ordinal) != cudaSuccess) return -1;
  std::transform(address, address + std::strlen(address), address,
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(
      concat("/sys/bus/pci/devices/", static_cast<const char*>(address), "/numa_node"));
  int node = -1;
  return file >> node ? node : -1;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(Gpu gpu, std::uint64_t context_bytes)
      : gpu_(std::make_shared<const Gpu>(std::move(gpu))),
        context_bytes_(context_bytes),
        numa_node_(numa_node_of(gpu_->ordinal)) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string uuid() const override { return gpu_->uuid; }
  std::string name() const override { return gpu_->name; }
  int numa_node() const override { return numa_node_; }

  Result<DeviceMemory> memory() override {
    const GpuScope scope(*gpu_);
    std::size_t free = 0, total = 0;
    CKPT_RETURN_IF_ERROR(cuda_status(::cudaMemGetInfo(&free, &total), "cudaMemGetInfo", *gpu_));
    return DeviceMemory{.free_bytes = free, .total_bytes = total};
  }

  std::uint64_t context_bytes() const override { return context_bytes_; }
  std::unique_ptr<CurrentDevice> make_current() override {
    return std::make_unique<CurrentGpu>(gpu_);
  }
  bool holds(const std::byte* data) const override {
    const auto attributes = attributes_of(data, *gpu_);
    return attributes && attributes->type == cudaMemoryTypeDevice;
  }
  bool digests(const std::byte* data) const override {
    const auto attributes = attributes_of(data, *gpu_);
    return attributes &&
           (attributes->type != cudaMemoryTypeDevice || attributes->device == gpu_->ordinal);
  }
  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t bytes,
                                                 const std::string& name) override;
  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle& handle) override;
  Result<std::unique_ptr<CopyStream>> make_stream() override {
    return CudaStream::create(stream_parts_);
  }
  std::uint64_t streams_made() const override { return stream_parts_->made(); }
  Result<std::unique_ptr<PinnedRange>> pin(std::byte* data, std::uint64_t bytes) override;

 private:
  const std::shared_ptr<const Gpu> gpu_;
  const std::shared_ptr<StreamParts> stream_parts_ = std::make_shared<StreamParts>(gpu_);
  const std::uint64_t context_bytes_;
  const int numa_node_;
};

Result<std::unique_ptr<DeviceBuffer>> CudaDevice::allocate(std::uint64_t bytes,
                                                           const std::string& name) {
  if (bytes == 0) return invalid_argument(concat("device memory ", name, " of 0 bytes"));
  const GpuScope scope(*gpu_);
  void* data = nullptr;
  const std::uint64_t blocks = bytes / kBlockBytes + (bytes % kBlockBytes != 0);
  CKPT_RETURN_IF_ERROR(cuda_status(::cudaMalloc(&data, blocks * kBlockBytes),
                                   concat("allocating ", format_bytes(bytes), " for ", name),
                                   *gpu_));
  cudaIpcMemHandle_t ipc;
  const Status exported = cuda_status(::cudaIpcGetMemHandle(&ipc, data),
                                      concat("exporting ", name, " to other processes"), *gpu_);
  if (!exported.is_ok()) {
    ::cudaFree(data);
    return exported;
  }
  return std::unique_ptr<DeviceBuffer>(new OwnedBuffer(gpu_, data, bytes, ipc));
}

Result<std::unique_ptr<DeviceBuffer>> CudaDevice::open(const BufferHandle& handle) {
  if (handle.kind != DeviceKind::kCuda) {
    return invalid_argument(concat("the buffer ", quoted(handle.shared_memory),
                                   " lies in CPU memory, which device cuda does not open; use "
                                   "--device cuda on both sides"));
  }
  cudaIpcMemHandle_t ipc;
  if (handle.ipc.size() != sizeof(ipc)) {
    return protocol_error(
        concat("a CUDA IPC handle has ", sizeof(ipc), " bytes, not ", handle.ipc.size()));
  }
  std::memcpy(&ipc, handle.ipc.data(), sizeof(ipc));
  const GpuScope scope(*gpu_);
  void* data = nullptr;
  // The flag lets this GPU reach the memory of a neighbour.
  const cudaError_t error = ::cudaIpcOpenMemHandle(&data, ipc, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    return unavailable(
               cuda_status(
                   error, concat("opening memory that another process has on ", handle.device_uuid),
                   *gpu_)
                   .message())
        .with_context(
            "CUDA IPC needs a living owner on this host, in the same container and of "
            "the same user, and never this process itself");
  }
  return std::unique_ptr<DeviceBuffer>(new OpenedBuffer(gpu_, data, handle));
}

Result<std::unique_ptr<PinnedRange>> CudaDevice::pin(std::byte* data, std::uint64_t bytes) {
  if (bytes == 0) return std::make_unique<PinnedRange>();
  const GpuScope scope(*gpu_);
  CKPT_RETURN_IF_ERROR(cuda_status(::cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                                   concat("pinning ", format_bytes(bytes), " of host memory"),
                                   *gpu_));
  return std::unique_ptr<PinnedRange>(new RegisteredRange(gpu_, data));
}

}  // namespace

int cuda_device_count() {
  const Result<int> found = find_gpus();
  return found.is_ok() ? *found : 0;
}

Result<std::shared_ptr<Device>> make_cuda_device(const std::string& uuid) {
  const int count = cuda_device_count();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (::cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) {
      ::cudaGetLastError();
      continue;
    }
    if (format_uuid(properties.uuid) == uuid) return make_cuda_device(ordinal);
  }
  return not_found(concat(uuid, " is none of the ", count,
                          " GPUs that this process sees (CUDA_VISIBLE_DEVICES decides which)"));
}

Result<std::shared_ptr<Device>> make_cuda_device(int ordinal) {
  Gpu gpu{.ordinal = ordinal, .uuid = "no GPU yet", .name = "CUDA"};
  CKPT_ASSIGN_OR_RETURN(const int count, find_gpus());
  if (count == 0) {
    return unavailable(
        "this process sees no GPU, or there is no NVIDIA driver: install the driver, see what "
        "CUDA_VISIBLE_DEVICES says, or use --device host");
  }
  if (ordinal < 0 || ordinal >= count) {
    return not_found(concat("no GPU ", ordinal, ": this process sees ", count,
                            " (CUDA_VISIBLE_DEVICES decides which)"));
  }
  cudaDeviceProp properties{};
  CKPT_RETURN_IF_ERROR(
      cuda_status(::cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", gpu));
  gpu.uuid = format_uuid(properties.uuid);
  gpu.name = properties.name;
  const auto before = used_device_memory(gpu.uuid);
  {
    const GpuScope scope(gpu);
    // Makes the context now, so that a GPU that is in exclusive use is refused here.
    CKPT_RETURN_IF_ERROR(cuda_status(::cudaFree(nullptr), "creating a CUDA context", gpu));
  }
  const auto after = used_device_memory(gpu.uuid);
  const std::uint64_t context = before && after && *after > *before ? *after - *before : 0;
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(std::move(gpu), context));
}

}  // namespace ckpt
