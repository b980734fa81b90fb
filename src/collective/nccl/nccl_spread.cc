#include "collective/nccl/nccl_spread.h"

#include <chrono>

#include "base/strings.h"

namespace ckpt {
namespace {

// Group calls queued at once: the next must be there when one ends.
constexpr std::size_t kWindow = 4;
// Between two looks for errors that NCCL finds while a call is under way.
constexpr std::chrono::milliseconds kErrorCheck{50};

}  // namespace

NcclSpread::NcclSpread(NcclContext context)
    : context_(std::move(context)),
      space_(context_.plan, context_.schedule, context_.layout, context_.progress,
             // A worker has loaded what its rank has in its ring: no need to ask the ranks.
             RingReaders{context_.layout.spread_ranks(), {}}),
      rounds_(nccl_rounds(context_.plan, context_.schedule)) {}

bool NcclSpread::can_start(const NcclRound& round) const {
  for (const std::uint32_t index : round) {
    const Pull& pull = context_.schedule.pull[index];
    const bool filled =
        context_.progress.value(context_.layout.stream(pull.rank, pull.kind)) > pull.sequence;
    if (!filled || !space_.is_free(pull.chunk.bucket)) return false;
  }
  return true;
}

Status NcclSpread::wait_until_startable(const NcclRound& round, Deadline deadline,
                                        AbortSignal& abort) const {
  for (const std::uint32_t index : round) {
    const Pull& pull = context_.schedule.pull[index];
    CKPT_RETURN_IF_ERROR(space_.wait(pull.chunk.bucket, deadline, abort));
    CKPT_RETURN_IF_ERROR(
        context_.progress
            .wait(context_.layout.stream(pull.rank, pull.kind), pull.sequence + 1, deadline, abort)
            .with_context(
                concat("bucket ", pull.chunk.bucket, " from the staging of rank ", pull.rank)));
  }
  return Status();
}

Status NcclSpread::start(std::size_t number, Deadline deadline, AbortSignal& abort) {
  const Staging& staging = context_.staging;
  std::vector<NcclBroadcast> group;
  for (const std::uint32_t index : rounds_[number]) {
    const Pull& pull = context_.schedule.pull[index];
    const Part& part = context_.plan.parts[pull.chunk.part];
    std::byte* const to =
        context_.ring + context_.plan.places_of(part)[0].ring_offset + pull.chunk.part_offset;
    const std::byte* from = to;  // without staging it lies there already
    if (pull.rank == context_.rank && staging.slots > 0) {
      from = staging.data + pull.sequence % staging.slots * staging.slot_bytes;
    }
    group.push_back({from, to, pull.chunk.bytes, context_.communicator.member(pull.rank)});
  }
  CKPT_RETURN_IF_ERROR(
      context_.communicator.broadcast(group, context_.stream->native_handle(), deadline, abort));
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, context_.stream->mark());
  in_flight_.push_back({number, ticket});
  return Status();
}

// The stream alone is never past a call that has failed.
Status NcclSpread::wait_for(CopyStream::Ticket ticket, Deadline deadline, AbortSignal& abort) {
  while (true) {
    const Deadline look = deadline.earlier(Deadline::after(kErrorCheck));
    Status status = context_.stream->wait(ticket, look, abort);
    if (status.code() != StatusCode::kDeadlineExceeded || abort.raised()) return status;
    CKPT_RETURN_IF_ERROR(context_.communicator.check());
    if (deadline.expired()) return status;
  }
}

Status NcclSpread::finish_oldest(Deadline deadline, AbortSignal& abort) {
  const InFlight oldest = in_flight_.front();
  in_flight_.pop_front();
  CKPT_RETURN_IF_ERROR(wait_for(oldest.ticket, deadline, abort));
  for (const std::uint32_t index : rounds_[oldest.round]) {
    const Pull& pull = context_.schedule.pull[index];
    bytes_.fetch_add(pull.chunk.bytes, std::memory_order_relaxed);
    context_.progress.publish(context_.layout.pulled(context_.rank, pull.rank, pull.kind),
                              pull.sequence + 1);
    context_.pulled.complete(index);
  }
  return Status();
}

Status NcclSpread::work(Deadline deadline, AbortSignal& abort) {
  std::size_t next = 0;
  while (next < rounds_.size() || !in_flight_.empty()) {
    const bool startable =
        next < rounds_.size() && in_flight_.size() < kWindow && can_start(rounds_[next]);
    if (!startable && !in_flight_.empty()) {
      CKPT_RETURN_IF_ERROR(finish_oldest(deadline, abort));
      continue;
    }
    if (!startable) CKPT_RETURN_IF_ERROR(wait_until_startable(rounds_[next], deadline, abort));
    if (abort.raised()) return abort.cause();
    CKPT_RETURN_IF_ERROR(start(next++, deadline, abort));
  }
  return context_.communicator.check();
}

Status NcclSpread::run(Deadline deadline, AbortSignal& abort) {
  const Status status = work(deadline, abort);
  // Before the stream, which waits for kernels that wait for ranks that will not come.
  if (!status.is_ok()) context_.communicator.abort();
  context_.stream.reset();
  return status;
}

}  // namespace ckpt
