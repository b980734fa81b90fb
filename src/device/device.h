// A device: the place where the inference engine's weights live. `host` is CPU memory, `cuda` a
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

enum class DeviceKind : std::uint8_t { kHost = 0, kCuda = 1 };

/// How another process opens a buffer: sent to workers and to ranks of the same host.
struct BufferHandle {
  DeviceKind kind = DeviceKind::kHost;
  std::uint64_t bytes = 0;
  std::string shared_memory;   ///< host: name in /dev/shm
  std::vector<std::byte> ipc;  ///< cuda: the 64 bytes of cudaIpcMemHandle_t
  std::string device_uuid;     ///< cuda: on which GPU it lies

  bool operator==(const BufferHandle&) const = default;
};

/// Device memory, owned or opened from another process. The destructor frees or closes it.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual std::byte* data() const = 0;  ///< a device pointer on cuda
  virtual std::uint64_t size() const = 0;
  virtual BufferHandle handle() const = 0;
  /// From now on nobody else can open it; who has it open keeps it. (Host: the name in /dev/shm is
  /// removed.)
  virtual void close_to_others() = 0;
};

/// A piece of a buffer whose digest sum (checkpoint/digest.h) is wanted.
struct DigestRequest {
  const std::byte* data;
  std::uint64_t bytes;
  std::uint64_t first_word = 0;  ///< index of its first word in what is digested
};

/// An ordered queue of copies. One thread uses it at a time. The destructor waits for what is
/// queued.
class CopyStream {
 public:
  /// A point in the queue: everything queued before the mark() that gave it.
  using Ticket = std::uint64_t;

  virtual ~CopyStream() = default;
  /// What others queue work on: a cudaStream_t; null on host, where nothing is queued.
  virtual void* native_handle() { return nullptr; }
  /// Queues a copy in any direction between host, device and opened peer memory. Host memory must
  /// be pinned (Device::pin) to overlap, and must not span two separately pinned pieces. The host
  /// device copies at once.
  virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  /// Queues digest sums; `sums` (host memory, one for each request) is filled when a later mark()
  /// is reached.
  virtual Status digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) = 0;
  virtual Result<Ticket> mark() = 0;
  virtual Result<bool> reached(Ticket ticket) = 0;
  /// Waits without spinning on a processor.
  virtual Status wait(Ticket ticket, Deadline deadline, AbortSignal& abort) = 0;
};

/// Host memory that the device copies from asynchronously. The destructor unpins.
class PinnedRange {
 public:
  virtual ~PinnedRange() = default;
};

/// While it lives, Device::make_current() holds; it ends on the thread that began it.
class CurrentDevice {
 public:
  virtual ~CurrentDevice() = default;
};

struct DeviceMemory {
  std::uint64_t free_bytes;  ///< at this moment
  std::uint64_t total_bytes;
};

/// All methods from any thread.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  /// The key by which engines know it: "GPU-xxxxxxxx-..." on cuda; empty on host, where keys are
  /// CPU-<worker>.
  virtual std::string uuid() const = 0;
  virtual std::string name() const = 0;  ///< for people
  virtual Result<DeviceMemory> memory() = 0;
  /// Device memory of the CUDA context that making this device has made, as far as nobody else took
  /// any meanwhile. 0 where the process had one already, and where the driver does not say.
  virtual std::uint64_t context_bytes() const { return 0; }
  /// For libraries that work with the GPU that is current on the calling thread (NCCL): it is this
  /// one as long as the result lives. Null on host.
  virtual std::unique_ptr<CurrentDevice> make_current() { return nullptr; }
  /// The NUMA node whose host memory is nearest; -1 where there is no such node or it is unknown.
  virtual int numa_node() const { return -1; }
  /// True for memory of a device, which the processor cannot read: of this one, or one that its
  /// streams copy from.
  virtual bool holds(const std::byte*) const { return false; }
  /// Whether a stream of this device may digest this memory. (On cuda, that of another GPU can be
  /// copied from, but no kernel reads it.)
  virtual bool digests(const std::byte*) const { return true; }
  /// Memory that other processes of this host can open. `name` must be new on this host (host: in
  /// /dev/shm).
  virtual Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t bytes,
                                                         const std::string& name) = 0;
  /// Memory of another process. On cuda a process cannot open its own handle.
  virtual Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle& handle) = 0;
  /// What a stream is made of (queue, events, tables of digests; threads on host) lives as long as
  /// the device, or as the last of its streams: the next stream takes it over, unless one that ends
  /// has failed or has work that nobody has waited for.
  virtual Result<std::unique_ptr<CopyStream>> make_stream() = 0;
  /// How many such things have been made so far.
  virtual std::uint64_t streams_made() const { return 0; }
  virtual Result<std::unique_ptr<PinnedRange>> pin(std::byte* data, std::uint64_t bytes) = 0;
};

/// CPU memory; `copy_threads` threads share a copy.
std::shared_ptr<Device> make_host_device(int copy_threads = 1);
/// The GPU that CUDA counts as `ordinal`, or why there is none (no driver, no GPU, built without
/// CUDA).
Result<std::shared_ptr<Device>> make_cuda_device(int ordinal);
/// The GPU with this uuid, whatever number it has here (CUDA_VISIBLE_DEVICES decides). Others are
/// not touched: a context costs half a GiB of their memory.
Result<std::shared_ptr<Device>> make_cuda_device(const std::string& uuid);
/// How many GPUs this process sees; 0 without a driver or without the backend.
int cuda_device_count();

}  // namespace ckpt
