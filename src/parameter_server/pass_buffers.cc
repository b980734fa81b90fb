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

Result<PassBuffers> PassBuffers::allocate(const PassSetup& setup, const Plan& plan,
                                          const Schedule& schedule,
                                          std::vector<int> local_recipients) {
  PassBuffers buffers;
  buffers.device_ = &setup.device;
  buffers.rank_ = setup.rank;
  buffers.makes_shared_ = local_recipients.front() == setup.rank;
  const bool alone = local_recipients.size() == 1;
  buffers.layout_ =
      std::make_unique<HostProgressLayout>(std::move(local_recipients), links_of(schedule));
  // Random: a job that was killed may have left names behind, and its successor counts epochs from
  // the beginning.
  const auto new_name = [&](const char* what) {
    return concat(setup.shared_prefix, random_id(), "-", what);
  };

  if (alone) {
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_private(buffers.layout_->slots()));
    buffers.progress_ = std::make_unique<Progress>(std::move(progress));
  } else if (buffers.makes_shared_) {
    buffers.progress_name_ = new_name("progress");
    CKPT_ASSIGN_OR_RETURN(Progress progress, Progress::create_shared(buffers.progress_name_,
                                                                     buffers.layout_->slots()));
    buffers.progress_ = std::make_unique<Progress>(std::move(progress));
  }

  const PlanOptions& sizes = plan.options;
  buffers.chunk_bytes_ = sizes.chunk_bytes;
  buffers.cross_chunk_bytes_ = sizes.cross_chunk_bytes;
  const bool per_rank = sizes.sharing == RingSharing::kPerRank;
  buffers.pulled_by_others_ = per_rank && !alone;
  if (per_rank || buffers.makes_shared_) {
    CKPT_ASSIGN_OR_RETURN(
        buffers.ring_,
        setup.device.allocate(std::max(sizes.ring_bytes, kRingAlignment), new_name("ring")));
  }
  if (schedule.fill_slots > 0) {
    CKPT_ASSIGN_OR_RETURN(
        buffers.fill_staging_,
        setup.device.allocate(sizes.chunk_bytes * schedule.fill_slots, new_name("staging")));
  }
  if (schedule.receive_slots > 0) {
    CKPT_ASSIGN_OR_RETURN(buffers.receive_staging_,
                          buffers.host_->allocate(sizes.cross_chunk_bytes * schedule.receive_slots,
                                                  new_name("received")));
  }
  return buffers;
}

void PassBuffers::describe(PassReady& ready) const {
  ready.progress = progress_name_;
  if (ring_) ready.ring = ring_->handle();
  if (fill_staging_) ready.fill_staging = fill_staging_->handle();
  if (receive_staging_) ready.receive_staging = receive_staging_->handle();
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
  if (!ring_) {
    CKPT_ASSIGN_OR_RETURN(ring_, device_->open(told_by(local.front()).ring));
  }
  for (const StreamKey& key : pulled_streams) {
    CKPT_ASSIGN_OR_RETURN(stagings_[key], open_stream(key, told_by(key.first)));
  }
  return Status();
}

Result<Staging> PassBuffers::open_stream(const StreamKey& key, const PassReady& told) {
  const bool received = key.second == StreamKind::kReceive;
  const BufferHandle& staging = received ? told.receive_staging : told.fill_staging;
  const bool staged = staging.bytes > 0;
  DeviceBuffer* buffer = !staged    ? ring_.get()
                         : received ? receive_staging_.get()
                                    : fill_staging_.get();
  if (key.first != rank_) {
    auto opened = (staged && received ? *host_ : *device_).open(staged ? staging : told.ring);
    if (!opened) return opened.status().with_context(concat("memory of rank ", key.first));
    opened_.push_back(std::move(*opened));
    buffer = opened_.back().get();
  }
  if (staged && received) {
    CKPT_ASSIGN_OR_RETURN(auto pinned, device_->pin(buffer->data(), buffer->size()));
    pinned_.push_back(std::move(pinned));
  }
  if (!staged) return Staging{buffer->data(), 0, 0};
  const std::uint64_t slot_bytes = received ? cross_chunk_bytes_ : chunk_bytes_;
  return Staging{buffer->data(), slot_bytes, staging.bytes / slot_bytes};
}

void PassBuffers::close_opened() {
  stagings_.clear();
  pinned_.clear();
  opened_.clear();
  if (progress_) progress_->publish(layout_->closed(rank_), 1);
}

void PassBuffers::wait_until_closed(Deadline deadline) const {
  if (!progress_ || !pulled_by_others_) return;
  AbortSignal never;
  for (const int rank : layout_->local_ranks()) {
    if (!progress_->wait(layout_->closed(rank), 1, deadline, never).is_ok()) return;
  }
}

void PassBuffers::close_to_others() {
  if (ring_) ring_->close_to_others();
  if (fill_staging_) fill_staging_->close_to_others();
  if (receive_staging_) receive_staging_->close_to_others();
  progress_->close_to_others();
}

}  // namespace ckpt
