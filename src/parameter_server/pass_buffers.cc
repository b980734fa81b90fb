#include "parameter_server/pass_buffers.h"

#include <algorithm>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {

std::string shared_memory_prefix(const std::string& job, const std::string& host_id) {
  // FNV-1a: only to keep names short and apart.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : concat(job, '\0', host_id)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return concat(kSharedMemoryPrefix, hash, "-");
}

Status PassBuffers::make_board(bool alone, std::string name) {
  const Progress::Slot slots = board_.layout->slots();
  if (alone) {
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_private(slots));
    board_.progress = std::make_unique<Progress>(std::move(progress));
  } else if (makes_shared_) {
    progress_name_ = std::move(name);
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_shared(progress_name_, slots));
    board_.progress = std::make_unique<Progress>(std::move(progress));
  }
  return Status();
}

Result<PassBuffers> PassBuffers::allocate(const PassSetup& setup, const Plan& plan,
                                          const Schedule& schedule,
                                          std::vector<int> local_recipients,
                                          std::vector<int> spread_recipients,
                                          std::optional<KeptSet> kept, bool keeps) {
  PassBuffers buffers;
  buffers.device_ = &setup.device;
  buffers.keeps_ = keeps;
  buffers.makes_shared_ = local_recipients.front() == setup.rank;
  const bool alone = local_recipients.size() == 1;
  buffers.board_.rank = setup.rank;
  buffers.board_.layout = std::make_unique<HostProgressLayout>(
      std::move(local_recipients), links_of(schedule), std::move(spread_recipients));
  PassMemory& memory = buffers.memory_;
  if (kept) {
    memory = std::move(kept->memory);
    buffers.opened_before_ = std::exchange(memory.opened, {});
    buffers.board_before_ = std::move(kept->board);
  }
  // Random: a job that was killed may have left names behind, and its successor counts epochs from
  // the beginning.
  const auto new_name = [&](const char* what) {
    return concat(setup.shared_prefix, random_id(), "-", what);
  };
  CKPT_RETURN_IF_ERROR(buffers.make_board(alone, new_name("progress")));

  const PlanOptions& sizes = plan.options;
  buffers.chunk_bytes_ = sizes.chunk_bytes;
  buffers.cross_chunk_bytes_ = sizes.cross_chunk_bytes;
  const bool per_rank = sizes.sharing == RingSharing::kPerRank;
  buffers.pulled_by_others_ = per_rank && !alone;
  const std::uint64_t ring_bytes = std::max(sizes.ring_bytes, kRingAlignment);
  if ((per_rank || buffers.makes_shared_) &&
      !(memory.ring && memory.ring_is_own && memory.ring->size() >= ring_bytes)) {
    memory.ring.reset();
    memory.ring_is_own = true;
    CKPT_ASSIGN_OR_RETURN(memory.ring, setup.device.allocate(ring_bytes, new_name("ring")));
    buffers.allocated_bytes_ += ring_bytes;
  }
  // Its size says how many slots it has.
  const auto has_size = [](const std::unique_ptr<DeviceBuffer>& buffer, std::uint64_t bytes) {
    return (buffer ? buffer->size() : 0) == bytes;
  };
  const std::uint64_t fill_bytes = sizes.chunk_bytes * schedule.fill_slots;
  if (!has_size(memory.fill_staging, fill_bytes)) {
    buffers.fill_staging_before_ = std::move(memory.fill_staging);
    if (fill_bytes > 0) {
      CKPT_ASSIGN_OR_RETURN(memory.fill_staging,
                            setup.device.allocate(fill_bytes, new_name("staging")));
    }
    buffers.allocated_bytes_ += fill_bytes;
  }
  // Host memory: who has it open keeps it.
  const std::uint64_t receive_bytes = sizes.cross_chunk_bytes * schedule.receive_slots;
  if (!has_size(memory.receive_staging, receive_bytes)) {
    memory.receive_pinned.reset();
    memory.receive_staging.reset();
  }
  if (receive_bytes > 0 && !memory.receive_staging) {
    CKPT_ASSIGN_OR_RETURN(memory.receive_staging,
                          buffers.host_->allocate(receive_bytes, new_name("received")));
  }
  return buffers;
}

void PassBuffers::describe(PassReady& ready) const {
  ready.progress = progress_name_;
  if (memory_.ring && memory_.ring_is_own) ready.ring = memory_.ring->handle();
  if (memory_.fill_staging) ready.fill_staging = memory_.fill_staging->handle();
  if (memory_.receive_staging) ready.receive_staging = memory_.receive_staging->handle();
}

Status PassBuffers::open(const std::vector<int>& recipients, const std::vector<PassReady>& ready,
                         const std::set<StreamKey>& pulled_streams) {
  const std::vector<int>& local = board_.layout->local_ranks();
  const auto told_by = [&](int rank) -> const PassReady& {
    const auto at = std::lower_bound(recipients.begin(), recipients.end(), rank);
    return ready[static_cast<std::size_t>(at - recipients.begin())];
  };
  if (!board_.progress) {
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::open_shared(told_by(local.front()).progress,
                                                                   board_.layout->slots()));
    board_.progress = std::make_unique<Progress>(std::move(progress));
  }
  if (!memory_.ring_is_own) {
    const BufferHandle& told = told_by(local.front()).ring;
    if (!memory_.ring || memory_.ring->handle() != told) {
      memory_.ring.reset();
      CKPT_ASSIGN_OR_RETURN(memory_.ring, device_->open(told));
    }
  }
  for (const StreamKey& key : pulled_streams) {
    CKPT_ASSIGN_OR_RETURN(stagings_[key], open_stream(key, told_by(key.first)));
  }
  opened_before_.clear();
  return Status();
}

Result<DeviceBuffer*> PassBuffers::open_or_reuse(Device& device, const BufferHandle& handle,
                                                 int owner, bool pin) {
  const auto before = std::ranges::find(opened_before_, handle, &PassMemory::Opened::handle);
  PassMemory::Opened opened;
  if (before != opened_before_.end()) {
    opened = std::move(*before);
    opened_before_.erase(before);
  } else {
    opened.handle = handle;
    auto buffer = device.open(handle);
    if (!buffer) return buffer.status().with_context(concat("memory of rank ", owner));
    opened.buffer = std::move(*buffer);
  }
  if (pin && !opened.pinned) {
    CKPT_ASSIGN_OR_RETURN(opened.pinned,
                          device_->pin(opened.buffer->data(), opened.buffer->size()));
  }
  memory_.opened.push_back(std::move(opened));
  return memory_.opened.back().buffer.get();
}

Result<Staging> PassBuffers::open_stream(const StreamKey& key, const PassReady& told) {
  const bool received = key.second == StreamKind::kReceive;
  const BufferHandle& staging = received ? told.receive_staging : told.fill_staging;
  const bool staged = staging.bytes > 0;
  DeviceBuffer* buffer = !staged    ? memory_.ring.get()
                         : received ? memory_.receive_staging.get()
                                    : memory_.fill_staging.get();
  if (key.first != board_.rank) {
    CKPT_ASSIGN_OR_RETURN(
        buffer, open_or_reuse(staged && received ? *host_ : *device_, staged ? staging : told.ring,
                              key.first, staged && received));
  } else if (staged && received && !memory_.receive_pinned) {
    CKPT_ASSIGN_OR_RETURN(memory_.receive_pinned, device_->pin(buffer->data(), buffer->size()));
  }
  if (!staged) return Staging{buffer->data(), 0, 0};
  const std::uint64_t slot_bytes = received ? cross_chunk_bytes_ : chunk_bytes_;
  return Staging{buffer->data(), slot_bytes, staging.bytes / slot_bytes};
}

void PassBuffers::opened_everywhere() {
  fill_staging_before_.reset();
  board_before_ = {};
}

void PassBuffers::close_opened() {
  stagings_.clear();
  opened_before_.clear();
  memory_.opened.clear();
  memory_.receive_pinned.reset();
  board_before_.say_closed();
  board_.say_closed();
}

void PassBuffers::wait_until_closed(Deadline deadline) const {
  if (!pulled_by_others_) return;
  AbortSignal never;
  (board_before_.progress ? board_before_ : board_).wait_until_closed(deadline, never);
}

void PassBuffers::close_to_others() {
  board_.progress->close_to_others();
  if (keeps_) return;
  memory_.ring->close_to_others();
  if (memory_.fill_staging) memory_.fill_staging->close_to_others();
  if (memory_.receive_staging) memory_.receive_staging->close_to_others();
}

KeptSet PassBuffers::leave() {
  close_to_others();
  return {std::move(memory_), std::move(board_)};
}

}  // namespace ckpt
