#include "parameter_server/offer_lane.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace ckpt {
namespace {

/// Chunks that are copied before anybody hears of them: what arrives together is one turn of the
/// device, but a reader is not kept waiting for a whole backlog.
constexpr std::size_t kMostAtOnce = 8;

}  // namespace

std::vector<ArrivingChunk> arriving_chunks(std::span<const Schedule* const> schedules,
                                           const HostProgressLayout& layout, int rank) {
  std::vector<ArrivingChunk> all;
  const auto add = [&](Progress::Slot slot, const Chunk& chunk, std::size_t sequence) {
    all.push_back({slot, sequence + 1, chunk});
  };
  const std::vector<int>& ranks = layout.local_ranks();
  const auto own = static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
  const std::vector<Pull>& pulls = schedules[own]->pull;
  if (!pulls.empty()) {
    for (std::size_t i = 0; i < pulls.size(); ++i) {
      add(layout.pulled_total(rank), pulls[i].chunk, i);
    }
    return all;
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Schedule& schedule = *schedules[r];
    for (std::size_t i = 0; i < schedule.fill.size(); ++i) {
      add(layout.stream(ranks[r], StreamKind::kFill), schedule.fill[i], i);
    }
    for (std::size_t i = 0; i < schedule.receive.size(); ++i) {
      add(layout.stream(ranks[r], StreamKind::kReceive), schedule.receive[i].chunk, i);
    }
  }
  std::ranges::stable_sort(all, {}, [](const ArrivingChunk& arriving) {
    return std::pair(arriving.chunk.bucket, arriving.chunk.part_offset);
  });
  return all;
}

Result<std::unique_ptr<OfferLane>> OfferLane::create(OfferContext context) {
  CKPT_ASSIGN_OR_RETURN(Progress copied, Progress::create_private(1));
  return std::unique_ptr<OfferLane>(new OfferLane(std::move(context), std::move(copied)));
}

OfferLane::OfferLane(OfferContext context, Progress copied)
    : context_(std::move(context)), copied_(std::move(copied)) {
  context_.copy.begin();
  tell_copied(0);
}

OfferLane::~OfferLane() { context_.copy.end(); }

bool OfferLane::has_arrived(const ArrivingChunk& arriving) const {
  return context_.progress.value(arriving.slot) >= arriving.target;
}

Status OfferLane::copy(std::span<const ArrivingChunk> arrived, Deadline deadline,
                       AbortSignal& abort) {
  std::uint64_t bytes = 0;
  for (const ArrivingChunk& each : arrived) {
    CKPT_ASSIGN_OR_RETURN(const std::uint64_t queued,
                          context_.copy.copy(context_.catalog, context_.plan, each.chunk,
                                             context_.ring, *context_.stream));
    bytes += queued;
  }
  CKPT_ASSIGN_OR_RETURN(const CopyStream::Ticket ticket, context_.stream->mark());
  CKPT_RETURN_IF_ERROR(context_.stream->wait(ticket, deadline, abort));
  for (const ArrivingChunk& each : arrived) {
    context_.copy.offer(context_.catalog, context_.plan, each.chunk);
  }
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return Status();
}

/// So many chunks from the beginning are copied.
void OfferLane::tell_copied(std::size_t chunks) {
  copied_.publish(0, chunks < context_.arriving.size() ? context_.arriving[chunks].chunk.bucket
                                                       : context_.plan.buckets.size());
}

Status OfferLane::run(Deadline deadline, AbortSignal& abort) {
  const std::span<const ArrivingChunk> all(context_.arriving);
  const auto work = [&]() -> Status {
    for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
      const ArrivingChunk& first = all[begin];
      CKPT_RETURN_IF_ERROR(context_.progress.wait(first.slot, first.target, deadline, abort)
                               .with_context(concat("bucket ", first.chunk.bucket,
                                                    ", which is kept for other jobs")));
      do {
        ++end;
      } while (end < all.size() && end - begin < kMostAtOnce && has_arrived(all[end]));
      CKPT_RETURN_IF_ERROR(copy(all.subspan(begin, end - begin), deadline, abort));
      tell_copied(end);
    }
    return Status();
  };
  const Status status = work();
  context_.stream.reset();  // waits for queued copies
  return status;
}

Status OfferLane::confirm(std::uint32_t bucket, bool checked, Deadline deadline,
                          AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(copied_.wait(0, bucket + std::uint64_t{1}, deadline, abort)
                           .with_context(concat("bucket ", bucket, " is kept for other jobs")));
  const Bucket& planned = context_.plan.buckets[bucket];
  if (!checked) {
    CKPT_RETURN_IF_ERROR(context_.copy.check(context_.catalog, context_.plan, planned));
  }
  context_.copy.confirm(context_.catalog, context_.plan, planned);
  return Status();
}

}  // namespace ckpt
