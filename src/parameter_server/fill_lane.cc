#include "parameter_server/fill_lane.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt {
namespace {

// Copies queued at once: the engine that copies must never wait for us to queue the next one.
constexpr std::size_t kWindow = 4;

}  // namespace

bool FillLane::has_room(std::size_t sequence) const {
  const FillTarget& target = context_.target;
  if (target.ring != nullptr)
    return context_.space.is_free(context_.schedule.fill[sequence].bucket);
  if (sequence < target.slots) return true;
  return std::all_of(target.pullers.begin(), target.pullers.end(), [&](int puller) {
    const auto slot = context_.layout.pulled(puller, context_.rank, StreamKind::kFill);
    return context_.progress.value(slot) + target.slots > sequence;
  });
}

Status FillLane::wait_for_room(std::size_t sequence, Deadline deadline, AbortSignal& abort) const {
  const FillTarget& target = context_.target;
  if (target.ring != nullptr) {
    return context_.space.wait(context_.schedule.fill[sequence].bucket, deadline, abort);
  }
  if (sequence < target.slots) return Status();
  for (const int puller : target.pullers) {
    const auto slot = context_.layout.pulled(puller, context_.rank, StreamKind::kFill);
    CKPT_RETURN_IF_ERROR(
        context_.progress.wait(slot, sequence + 1 - target.slots, deadline, abort)
            .with_context(
                concat("rank ", puller, " pulls from the staging of rank ", context_.rank)));
  }
  return Status();
}

Status FillLane::start(std::size_t sequence) {
  const Chunk& chunk = context_.schedule.fill[sequence];
  const Part& part = context_.plan.parts[chunk.part];
  const FillTarget& target = context_.target;
  // Offsets of a range count from the part's beginning; in staging the chunk itself begins the
  // slot.
  std::byte* base =
      target.ring != nullptr
          ? target.ring + context_.plan.places_of(part)[0].ring_offset
          : target.staging + sequence % target.slots * target.slot_bytes - chunk.part_offset;
  for (const SourceRange& range : chunk_ranges(context_.plan, chunk)) {
    std::byte* to = base + range.part_offset;
    CKPT_ASSIGN_OR_RETURN(const std::vector<PoolRun> runs,
                          context_.pool.cut(range.source_offset, range.bytes));
    for (const PoolRun& run : runs) {
      CKPT_RETURN_IF_ERROR(context_.stream->copy(to, run.data, run.bytes));
      to += run.bytes;
    }
  }
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, context_.stream->mark());
  in_flight_.push_back({sequence, ticket});
  return Status();
}

Status FillLane::finish_oldest(Deadline deadline, AbortSignal& abort) {
  const InFlight oldest = in_flight_.front();
  in_flight_.pop_front();
  CKPT_RETURN_IF_ERROR(context_.stream->wait(oldest.ticket, deadline, abort));
  bytes_.fetch_add(context_.schedule.fill[oldest.sequence].bytes, std::memory_order_relaxed);
  context_.progress.publish(context_.layout.stream(context_.rank, StreamKind::kFill),
                            oldest.sequence + 1);
  return Status();
}

Status FillLane::run(Deadline deadline, AbortSignal& abort) {
  const std::size_t count = context_.schedule.fill.size();
  const auto work = [&]() -> Status {
    std::size_t next = 0;
    while (next < count || !in_flight_.empty()) {
      const bool startable = next < count && in_flight_.size() < kWindow && has_room(next);
      if (!startable && !in_flight_.empty()) {
        CKPT_RETURN_IF_ERROR(finish_oldest(deadline, abort));
        continue;
      }
      if (!startable) CKPT_RETURN_IF_ERROR(wait_for_room(next, deadline, abort));
      if (abort.raised()) return abort.cause();
      CKPT_RETURN_IF_ERROR(start(next++));
    }
    return Status();
  };
  const Status status = work();
  context_.stream.reset();  // waits for queued copies
  return status;
}

}  // namespace ckpt
