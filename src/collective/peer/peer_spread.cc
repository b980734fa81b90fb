#include "collective/peer/peer_spread.h"

#include "base/strings.h"

namespace ckpt {
namespace {

// Copies queued at once. The copy engine needs the next one before the last has ended; a staging
// chunk is given back when its own copy is complete, so that a deeper queue costs no space.
constexpr std::size_t kWindow = 4;

}  // namespace

std::set<StreamKey> pulled_streams(const Schedule& schedule) {
  std::set<StreamKey> streams;
  for (const Pull& pull : schedule.pull) streams.insert({pull.rank, pull.kind});
  return streams;
}

PullProgress::PullProgress(const Schedule& schedule, Progress& progress,
                           const HostProgressLayout& layout, int rank)
    : progress_(progress), slot_(layout.pulled_total(rank)), done_(schedule.pull.size()) {}

void PullProgress::complete(std::size_t index) {
  const std::lock_guard lock(mutex_);
  done_[index] = true;
  const std::size_t before = without_gap_;
  while (without_gap_ < done_.size() && done_[without_gap_]) ++without_gap_;
  if (without_gap_ > before) progress_.publish(slot_, without_gap_);
}

PeerSpread::PeerSpread(PeerContext context) : context_(std::move(context)) {
  const std::vector<Pull>& pulls = context_.schedule.pull;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    if (StreamKey(pulls[i].rank, pulls[i].kind) == context_.source) pulls_.push_back(i);
  }
}

bool PeerSpread::can_start(const Pull& pull) const {
  return context_.progress.value(context_.layout.stream(pull.rank, pull.kind)) > pull.sequence &&
         context_.space.is_free(pull.chunk.bucket);
}

Status PeerSpread::wait_until_startable(const Pull& pull, Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(context_.space.wait(pull.chunk.bucket, deadline, abort));
  return context_.progress
      .wait(context_.layout.stream(pull.rank, pull.kind), pull.sequence + 1, deadline, abort)
      .with_context(concat("bucket ", pull.chunk.bucket, " from the staging of rank ", pull.rank));
}

Status PeerSpread::start(std::size_t index) {
  const Pull& pull = context_.schedule.pull[index];
  const Staging& staging = context_.staging;
  const Part& part = context_.plan.parts[pull.chunk.part];
  const std::uint64_t ring_offset =
      context_.plan.places_of(part)[0].ring_offset + pull.chunk.part_offset;
  const std::byte* from = staging.slots == 0
                              ? staging.data + ring_offset
                              : staging.data + pull.sequence % staging.slots * staging.slot_bytes;
  // Without staging this rank's own chunks are where they belong already.
  if (from != context_.ring + ring_offset) {
    CKPT_RETURN_IF_ERROR(
        context_.stream->copy(context_.ring + ring_offset, from, pull.chunk.bytes));
  }
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, context_.stream->mark());
  in_flight_.push_back({index, ticket});
  return Status();
}

Status PeerSpread::finish_oldest(Deadline deadline, AbortSignal& abort) {
  const InFlight oldest = in_flight_.front();
  in_flight_.pop_front();
  const Pull& pull = context_.schedule.pull[oldest.pull];
  CKPT_RETURN_IF_ERROR(context_.stream->wait(oldest.ticket, deadline, abort));
  bytes_.fetch_add(pull.chunk.bytes, std::memory_order_relaxed);
  context_.progress.publish(context_.layout.pulled(context_.rank, pull.rank, pull.kind),
                            pull.sequence + 1);
  context_.pulled.complete(oldest.pull);
  return Status();
}

Status PeerSpread::run(Deadline deadline, AbortSignal& abort) {
  const std::vector<Pull>& list = context_.schedule.pull;
  const auto work = [&]() -> Status {
    std::size_t next = 0;
    while (next < pulls_.size() || !in_flight_.empty()) {
      const bool startable =
          next < pulls_.size() && in_flight_.size() < kWindow && can_start(list[pulls_[next]]);
      if (!startable && !in_flight_.empty()) {
        CKPT_RETURN_IF_ERROR(finish_oldest(deadline, abort));
        continue;
      }
      if (!startable) {
        CKPT_RETURN_IF_ERROR(wait_until_startable(list[pulls_[next]], deadline, abort));
      }
      if (abort.raised()) return abort.cause();
      CKPT_RETURN_IF_ERROR(start(pulls_[next++]));
    }
    return Status();
  };
  const Status status = work();
  context_.stream.reset();  // waits for queued copies: afterwards nobody writes into the ring
  return status;
}

}  // namespace ckpt
