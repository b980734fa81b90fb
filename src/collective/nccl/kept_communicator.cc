#include "collective/nccl/kept_communicator.h"

#include <cstring>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {

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
  NcclUniqueId id{};
  if (key.size() != sizeof(id.bytes)) {
    return protocol_error(concat("rank ", members.front(), " sent a key of ", key.size(),
                                 " bytes for a communicator, not ", sizeof(id.bytes)));
  }
  std::memcpy(id.bytes, key.data(), key.size());
  // Asking also makes the GPU current on this thread, which is how NCCL learns of it.
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory before, device.memory());
  CKPT_ASSIGN_OR_RETURN(
      communicator_, NcclCommunicator::create(api_, id, std::move(members), rank, deadline, abort));
  CKPT_RETURN_IF_ERROR(connect(device, deadline, abort));
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory after, device.memory());
  device_bytes_ = before.free_bytes > after.free_bytes ? before.free_bytes - after.free_bytes : 0;
  id_ = 0xcbf29ce484222325;  // FNV-1a of the key
  for (const std::byte byte : key) id_ = (id_ ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  if (id_ == 0) id_ = 1;
  return Status();
}

Status KeptCommunicator::connect(Device& device, Deadline deadline, AbortSignal& abort) {
  constexpr std::uint64_t kBytes = 256;
  const std::size_t members = communicator_->members().size();
  CKPT_ASSIGN_OR_RETURN(
      const auto scratch,
      device.allocate(kBytes * members, concat("checkpoint-engine-nccl-", random_id())));
  scratch->close_to_others();
  CKPT_ASSIGN_OR_RETURN(const auto stream, device.make_stream());
  std::vector<NcclBroadcast> group;
  for (std::size_t root = 0; root < members; ++root) {
    std::byte* const data = scratch->data() + root * kBytes;
    group.push_back({data, data, kBytes, static_cast<int>(root)});
  }
  Status status = communicator_->broadcast(group, stream->native_handle(), deadline, abort);
  if (status.is_ok()) {
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
    status = stream->wait(ticket, deadline, abort);
  }
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
