#include "transport/ucx/destinations.h"

#include <functional>
#include <utility>

namespace ckpt::ucx {
namespace {

/// For what a read has brought in one message: at most kEagerBytes.
constexpr std::chrono::seconds kCopyPatience{10};

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::open(Device& device,
                                                         std::shared_ptr<Context> context,
                                                         std::vector<ucp_mem*> pinned) {
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory(std::move(context), std::move(pinned)));
  CKPT_ASSIGN_OR_RETURN(memory->stream_, device.make_stream());
  return memory;
}

DeviceMemory::~DeviceMemory() {
  stream_.reset();
  context_->unpin(pinned_);
}

Status DeviceMemory::write(void* to, const std::byte* from, std::uint64_t bytes) {
  AbortSignal never;
  CKPT_RETURN_IF_ERROR(stream_->copy(static_cast<std::byte*>(to), from, bytes));
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, stream_->mark());
  return stream_->wait(ticket, Deadline::after(kCopyPatience), never);
}

void Destinations::add(const std::byte* data, std::uint64_t bytes,
                       std::shared_ptr<DeviceMemory> memory) {
  const std::lock_guard lock(mutex_);
  ranges_[data] = {bytes, std::move(memory)};
  any_.store(true);
}

void Destinations::remove(const std::byte* data) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(data);
  any_.store(!ranges_.empty());
}

std::shared_ptr<DeviceMemory> Destinations::at(const void* destination) const {
  if (!any_.load()) return nullptr;
  const auto* place = static_cast<const std::byte*>(destination);
  const std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(place);
  if (range == ranges_.begin()) return nullptr;
  --range;
  const bool inside = std::less<>()(place, range->first + range->second.bytes);
  return inside ? range->second.memory : nullptr;
}

}  // namespace ckpt::ucx
