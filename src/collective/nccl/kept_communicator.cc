#include "collective/nccl/kept_communicator.h"

#include <cstring>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {
namespace {

// Of each member: large enough for the protocol and the SMs of a chunk, which take memory when they
// are first used.
constexpr std::uint64_t kFirstCallBytes = 4 << 20;

}  // namespace

Result<std::vector<std::byte>> KeptCommunicator::make_key() const {
  NcclUniqueId id{};
  if (const int result = api_->get_unique_id(&id); result != kNcclSuccess) {
    return internal_error(concat("ncclGetUniqueId: ", api_->get_error_string(result)));
  }
  const auto bytes = std::as_bytes(std::span(id.bytes));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Status KeptCommunicator::make(std::span<const std::byte> key, std::vector<int> members, int rank,
                              Device& device, Deadline deadline, AbortSignal& abort) {
  communicator_.reset();
  id_ = device_bytes_ = 0;
  NcclUniqueId id{};
  if (key.size() != sizeof(id.bytes)) {
    return protocol_error(concat("rank ", members.front(), " sent a key of ", key.size(),
                                 " bytes for a communicator, not ", sizeof(id.bytes)));
  }
  std::memcpy(id.bytes, key.data(), key.size());
  if (Status status = make_here(id, std::move(members), rank, device, deadline, abort);
      !status.is_ok()) {
    communicator_.reset();
    return status;
  }
  id_ = 0xcbf29ce484222325;  // FNV-1a of the key
  for (const std::byte byte : key) id_ = (id_ ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  if (id_ == 0) id_ = 1;
  return Status();
}

Status KeptCommunicator::make_here(const NcclUniqueId& id, std::vector<int> members, int rank,
                                   Device& device, Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory before, device.memory());
  CKPT_ASSIGN_OR_RETURN(communicator_, NcclCommunicator::create(api_, id, std::move(members), rank,
                                                                device, deadline, abort));
  CKPT_RETURN_IF_ERROR(connect(device, deadline, abort));
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory after, device.memory());
  device_bytes_ = before.free_bytes > after.free_bytes ? before.free_bytes - after.free_bytes : 0;
  return Status();
}

Status KeptCommunicator::connect(Device& device, Deadline deadline, AbortSignal& abort) {
  const std::size_t members = communicator_->members().size();
  CKPT_ASSIGN_OR_RETURN(
      const auto scratch,
      device.allocate(kFirstCallBytes * members, concat("checkpoint-engine-nccl-", random_id())));
  scratch->close_to_others();
  CKPT_ASSIGN_OR_RETURN(const auto stream, device.make_stream());
  std::vector<NcclBroadcast> group;
  for (std::size_t root = 0; root < members; ++root) {
    std::byte* const data = scratch->data() + root * kFirstCallBytes;
    group.push_back({data, data, kFirstCallBytes, static_cast<int>(root)});
  }
  const auto call = [&]() -> Status {
    CKPT_RETURN_IF_ERROR(communicator_->broadcast(group, stream->native_handle(), deadline, abort));
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
    return stream->wait(ticket, deadline, abort);
  };
  const Status status = call();
  // Before the stream and the memory go, which a kernel may still wait with.
  if (!status.is_ok()) communicator_->abort();
  return status;
}

void KeptCommunicator::update_over(Deadline deadline, AbortSignal& abort) {
  if (!released_ || !communicator_) return;
  communicator_->release(deadline, abort);
  communicator_.reset();
}

}  // namespace ckpt
