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
  return concat("checkpoint-engine-", hash, "-");
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
  const bool per_rank = sizes.sharing == RingSharing::kPerRank;
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
  return buffers;
}

void PassBuffers::describe(PassReady& ready) const {
  ready.progress = progress_name_;
  if (ring_) ready.ring = ring_->handle();
  if (fill_staging_) ready.fill_staging = fill_staging_->handle();
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
    const PassReady& told = told_by(key.first);
    const BufferHandle& handle = told.fill_staging.bytes > 0 ? told.fill_staging : told.ring;
    const std::byte* data = nullptr;
    if (key.first == rank_) {
      data = fill_staging_ ? fill_staging_->data() : ring_->data();
    } else {
      auto opened = device_->open(handle);
      if (!opened) return opened.status().with_context(concat("memory of rank ", key.first));
      data = (*opened)->data();
      opened_.push_back(std::move(*opened));
    }
    const std::uint64_t slots =
        told.fill_staging.bytes > 0 ? told.fill_staging.bytes / chunk_bytes_ : 0;
    stagings_[key] = {data, chunk_bytes_, slots};
  }
  return Status();
}

void PassBuffers::close_opened() {
  stagings_.clear();
  opened_.clear();
}

void PassBuffers::close_to_others() {
  if (ring_) ring_->close_to_others();
  if (fill_staging_) fill_staging_->close_to_others();
  progress_->close_to_others();
}

}  // namespace ckpt
