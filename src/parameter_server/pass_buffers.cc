#include "parameter_server/pass_buffers.h"

#include <algorithm>

#include "base/host.h"
#include "base/log.h"
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

Status PassBuffers::make_board(std::string name) {
  const Progress::Slot slots = layout_->slots();
  if (alone_) {
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_private(slots));
    progress_ = std::make_unique<Progress>(std::move(progress));
  } else if (makes_shared_) {
    progress_name_ = std::move(name);
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_shared(progress_name_, slots));
    progress_ = std::make_unique<Progress>(std::move(progress));
  }
  return Status();
}

PassBuffers::PassBuffers(const PassSetup& setup, const Schedule& schedule,
                         std::vector<int> local_recipients, std::vector<int> spread_recipients,
                         std::optional<PassMemory> kept, bool keeps)
    : device_(&setup.device),
      makes_shared_(local_recipients.front() == setup.rank),
      alone_(local_recipients.size() == 1),
      keeps_(keeps),
      rank_(setup.rank),
      layout_(std::make_unique<HostProgressLayout>(std::move(local_recipients), links_of(schedule),
                                                   std::move(spread_recipients))) {
  if (!kept) return;
  memory_ = std::move(*kept);
  opened_before_ = std::exchange(memory_.opened, {});
}

Status PassBuffers::allocate(const PassSetup& setup, const Plan& plan, const Schedule& schedule) {
  // Random: a job that was killed may have left names behind, and its successor counts epochs from
  // the beginning.
  const auto new_name = [&](const char* what) {
    return concat(setup.shared_prefix, random_id(), "-", what);
  };
  CKPT_RETURN_IF_ERROR(make_board(new_name("progress")));

  const PlanOptions& sizes = plan.options;
  chunk_bytes_ = sizes.chunk_bytes;
  cross_chunk_bytes_ = sizes.cross_chunk_bytes;
  const bool per_rank = sizes.sharing == RingSharing::kPerRank;
  const std::uint64_t ring_bytes = std::max(sizes.ring_bytes, kRingAlignment);
  if ((per_rank || makes_shared_) &&
      !(memory_.ring && memory_.ring_is_own && memory_.ring->size() >= ring_bytes)) {
    memory_.ring.reset();
    memory_.ring_is_own = true;
    CKPT_ASSIGN_OR_RETURN(memory_.ring, device_->allocate(ring_bytes, new_name("ring")));
    allocated_bytes_ += ring_bytes;
  }
  // Its size says how many slots it has.
  const auto has_size = [](const std::unique_ptr<DeviceBuffer>& buffer, std::uint64_t bytes) {
    return (buffer ? buffer->size() : 0) == bytes;
  };
  const std::uint64_t fill_bytes = sizes.chunk_bytes * schedule.fill_slots;
  const std::uint64_t receive_bytes = sizes.cross_chunk_bytes * schedule.receive_slots;
  // All device memory that others open is of one guard.
  if (!has_size(memory_.fill_staging, fill_bytes) ||
      (memory_.receives_on_device && !has_size(memory_.receive_staging, receive_bytes))) {
    if (memory_.receives_on_device) receive_staging_before_ = std::move(memory_.receive_staging);
    memory_.receives_on_device = false;
    fill_staging_before_ = std::move(memory_.fill_staging);
    guard_before_ = std::move(memory_.guard);
    memory_.guard.reset();
    if (fill_bytes > 0) {
      CKPT_ASSIGN_OR_RETURN(memory_.fill_staging,
                            device_->allocate(fill_bytes, new_name("staging")));
    }
    allocated_bytes_ += fill_bytes;
  }
  // Before anybody is told how it is opened.
  if (per_rank && !alone_ && !memory_.guard) {
    CKPT_ASSIGN_OR_RETURN(memory_.guard, MemoryGuard::create(new_name("guard")));
  }
  // Host memory: who has it open keeps it.
  if (!has_size(memory_.receive_staging, receive_bytes)) {
    memory_.receive_pinned.reset();
    memory_.receive_staging.reset();
  }
  if (receive_bytes == 0) return Status();
  return make_receive_staging(setup, schedule, new_name("received"));
}

Status PassBuffers::make_receive_staging(const PassSetup& setup, const Schedule& schedule,
                                         std::string name) {
  const std::uint64_t bytes = cross_chunk_bytes_ * schedule.receive_slots;
  const bool goes_on = std::ranges::any_of(
      schedule.receive, [](const IncomingChunk& chunk) { return chunk.next_stop >= 0; });
  if (!goes_on && setup.transport != nullptr &&
      setup.transport->can_read_into(device_->kind()).is_ok()) {
    const Status made = make_receive_staging_on_device(setup, bytes, concat(name, "-on-device"));
    if (made.is_ok()) return made;
    log_warning("rank ", rank_,
                " reads into host memory, not straight into that of its device: ", made.message());
  }
  if (memory_.receives_on_device) {
    // Others may have it open.
    memory_.unused_staging.push_back(std::move(memory_.receive_staging));
    memory_.receives_on_device = false;
  }
  if (memory_.receive_staging) return Status();
  CKPT_ASSIGN_OR_RETURN(memory_.receive_staging, host_->allocate(bytes, name));
  return Status();
}

Status PassBuffers::make_receive_staging_on_device(const PassSetup& setup, std::uint64_t bytes,
                                                   const std::string& name) {
  const bool is_new = !memory_.receives_on_device;
  if (is_new) {
    memory_.receive_pinned.reset();
    CKPT_ASSIGN_OR_RETURN(memory_.receive_staging, device_->allocate(bytes, name));
  }
  auto destination =
      setup.transport->register_destination(*device_, memory_.receive_staging->data(), bytes);
  if (destination) {
    destination_ = std::move(*destination);
    memory_.receives_on_device = true;
    if (is_new) allocated_bytes_ += bytes;
  } else if (is_new) {
    memory_.receive_staging.reset();
  }
  return destination.status();
}

void PassBuffers::describe(PassReady& ready) const {
  ready.progress = progress_name_;
  if (memory_.ring && memory_.ring_is_own) ready.ring = memory_.ring->handle();
  if (memory_.fill_staging) ready.fill_staging = memory_.fill_staging->handle();
  if (memory_.receive_staging) ready.receive_staging = memory_.receive_staging->handle();
  if (memory_.guard) ready.guard = memory_.guard->name();
}

Status PassBuffers::open(const std::vector<int>& recipients, const std::vector<PassReady>& ready,
                         const std::set<StreamKey>& pulled_streams) {
  const std::vector<int>& local = layout_->local_ranks();
  const auto told_by = [&](int rank) -> const PassReady& {
    const auto at = std::lower_bound(recipients.begin(), recipients.end(), rank);
    return ready[static_cast<std::size_t>(at - recipients.begin())];
  };
  if (!progress_) {
    CKPT_ASSIGN_OR_RETURN(Progress progress,
                          Progress::open_shared(told_by(local.front()).progress, layout_->slots()));
    progress_ = std::make_unique<Progress>(std::move(progress));
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
                                                 const std::string& guard, int owner, bool pin) {
  const auto before = std::ranges::find(opened_before_, handle, &PassMemory::Opened::handle);
  PassMemory::Opened opened;
  if (before != opened_before_.end()) {
    opened = std::move(*before);
    opened_before_.erase(before);
  } else {
    opened.handle = handle;
    if (!guard.empty()) {
      auto use = MemoryUse::begin(guard);
      if (!use) return use.status().with_context(concat("memory of rank ", owner));
      opened.use = std::move(*use);
    }
    auto buffer = device.open(handle);
    if (!buffer) {
      return buffer.status().with_context(
          concat("memory of rank ", owner,
                 handle.kind == DeviceKind::kCuda
                     ? " (where GPUs cannot open each other's, use --collective nccl)"
                     : ""));
    }
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
  const bool in_host_memory = staged && received && staging.kind == DeviceKind::kHost;
  DeviceBuffer* buffer = !staged    ? memory_.ring.get()
                         : received ? memory_.receive_staging.get()
                                    : memory_.fill_staging.get();
  if (key.first != rank_) {
    CKPT_ASSIGN_OR_RETURN(buffer, in_host_memory
                                      ? open_or_reuse(*host_, staging, {}, key.first, true)
                                      : open_or_reuse(*device_, staged ? staging : told.ring,
                                                      told.guard, key.first, false));
  } else if (in_host_memory && !memory_.receive_pinned) {
    CKPT_ASSIGN_OR_RETURN(memory_.receive_pinned, device_->pin(buffer->data(), buffer->size()));
  }
  if (!staged) return Staging{buffer->data(), 0, 0};
  const std::uint64_t slot_bytes = received ? cross_chunk_bytes_ : chunk_bytes_;
  return Staging{buffer->data(), slot_bytes, staging.bytes / slot_bytes};
}

void PassBuffers::opened_everywhere() {
  fill_staging_before_.reset();
  receive_staging_before_.reset();
  guard_before_.reset();
}

void PassBuffers::close_opened() {
  destination_.reset();
  stagings_.clear();
  opened_before_.clear();
  memory_.opened.clear();
  memory_.receive_pinned.reset();
}

bool PassBuffers::in_use() {
  // Both, so that neither is opened any more.
  const bool before = guard_before_ && guard_before_->in_use();
  const bool now = memory_.guard && memory_.guard->in_use();
  return before || now;
}

void PassBuffers::close_to_others() {
  progress_->close_to_others();
  if (keeps_) return;
  if (memory_.guard) memory_.guard->close_to_others();
  memory_.ring->close_to_others();
  if (memory_.fill_staging) memory_.fill_staging->close_to_others();
  if (memory_.receive_staging) memory_.receive_staging->close_to_others();
}

PassMemory PassBuffers::leave() {
  destination_.reset();
  close_to_others();
  return std::move(memory_);
}

}  // namespace ckpt
