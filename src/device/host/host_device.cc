// CPU memory as a device: buffers are POSIX shared memory, copies are made by the calling threads.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/bulk_copy.h"
#include "base/host.h"
#include "base/parallel.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "device/device.h"
#include "device/reusables.h"

namespace ckpt {
namespace {

// What one thread copies or digests at a time. A multiple of the digest's 8-byte words.
constexpr std::uint64_t kShareBytes = 1 << 20;

class HostBuffer final : public DeviceBuffer {
 public:
  HostBuffer(SharedMemory memory, bool made_here)
      : memory_(std::move(memory)), unlink_at_end_(made_here) {}
  ~HostBuffer() override {
    if (unlink_at_end_) SharedMemory::unlink(memory_.name());
  }

  std::byte* data() const override { return memory_.data(); }
  std::uint64_t size() const override { return memory_.size(); }
  BufferHandle handle() const override {
    return {.kind = DeviceKind::kHost, .bytes = memory_.size(), .shared_memory = memory_.name()};
  }
  void close_to_others() override {
    SharedMemory::unlink(memory_.name());
    unlink_at_end_ = false;
  }

 private:
  SharedMemory memory_;
  bool unlink_at_end_;
};

class HostStream final : public CopyStream {
 public:
  HostStream(std::shared_ptr<Reusables<ThreadPool>> pools, std::unique_ptr<ThreadPool> pool)
      : pools_(std::move(pools)), pool_(std::move(pool)) {}
  ~HostStream() override { pools_->give_back(std::move(pool_)); }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    if (bytes <= kShareBytes || pool_->threads() == 1) {
      bulk_copy(to, from, bytes);
      return Status::ok();
    }
    return pool_->for_each((bytes + kShareBytes - 1) / kShareBytes, [=](std::size_t i) {
      const std::uint64_t begin = i * kShareBytes;
      bulk_copy(to + begin, from + begin, std::min(kShareBytes, bytes - begin));
      return Status::ok();
    });
  }

  Status digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) override {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CKPT_ASSIGN_OR_RETURN(sums[i], digest_one(requests[i]));
    }
    return Status::ok();
  }

  Result<Ticket> mark() override { return ++last_ticket_; }

  Result<bool> reached(Ticket ticket) override {
    if (ticket == 0 || ticket > last_ticket_) return unknown_ticket(ticket);
    return true;
  }

  Status wait(Ticket ticket, Deadline, AbortSignal&) override { return reached(ticket).status(); }

 private:
  Result<std::uint64_t> digest_one(const DigestRequest& request) {
    std::atomic<std::uint64_t> sum{0};
    CKPT_RETURN_IF_ERROR(
        pool_->for_each((request.bytes + kShareBytes - 1) / kShareBytes, [&](std::size_t i) {
          const std::uint64_t begin = i * kShareBytes;
          sum += digest_sum(request.data + begin, std::min(kShareBytes, request.bytes - begin),
                            request.first_word + begin / 8);
          return Status::ok();
        }));
    return sum.load();
  }

  Status unknown_ticket(Ticket ticket) const {
    return invalid_argument(
        concat("ticket ", ticket, " was never given by this stream (last: ", last_ticket_, ")"));
  }

  const std::shared_ptr<Reusables<ThreadPool>> pools_;
  std::unique_ptr<ThreadPool> pool_;
  Ticket last_ticket_ = 0;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(int copy_threads) : copy_threads_(std::max(1, copy_threads)) {}

  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string uuid() const override { return {}; }
  std::string name() const override { return concat("CPU memory of ", host_name()); }

  Result<DeviceMemory> memory() override {
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t available, available_host_memory());
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t shared, free_shared_memory());
    const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    return DeviceMemory{.free_bytes = std::min(available, shared),
                        .total_bytes = pages * page_bytes};
  }

  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t bytes,
                                                 const std::string& name) override {
    CKPT_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::create(name, bytes));
    return std::unique_ptr<DeviceBuffer>(new HostBuffer(std::move(memory), true));
  }

  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle& handle) override {
    if (handle.kind != DeviceKind::kHost) {
      return invalid_argument(concat("the buffer lies on GPU ", handle.device_uuid,
                                     ", which device host cannot open; use --device cuda on both "
                                     "sides"));
    }
    CKPT_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::open(handle.shared_memory));
    if (memory.size() != handle.bytes) {
      return protocol_error(
          concat(memory.path(), " has ", memory.size(), " bytes, its handle says ", handle.bytes));
    }
    return std::unique_ptr<DeviceBuffer>(new HostBuffer(std::move(memory), false));
  }

  Result<std::unique_ptr<CopyStream>> make_stream() override {
    CKPT_ASSIGN_OR_RETURN(auto pool, pools_->take([&]() -> Result<std::unique_ptr<ThreadPool>> {
      return std::make_unique<ThreadPool>(copy_threads_);
    }));
    return std::unique_ptr<CopyStream>(new HostStream(pools_, std::move(pool)));
  }
  std::uint64_t streams_made() const override { return pools_->made(); }

  Result<std::unique_ptr<PinnedRange>> pin(std::byte*, std::uint64_t) override {
    return std::make_unique<PinnedRange>();  // a CPU copy needs nothing of its source
  }

 private:
  const int copy_threads_;
  const std::shared_ptr<Reusables<ThreadPool>> pools_ = std::make_shared<Reusables<ThreadPool>>();
};

}  // namespace

std::shared_ptr<Device> make_host_device(int copy_threads) {
  return std::make_shared<HostDevice>(copy_threads);
}

}  // namespace ckpt
