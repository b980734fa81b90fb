#include "collective/chain/chain_spread.h"

#include <algorithm>
#include <set>

#include "base/strings.h"

namespace ckpt {
namespace {

// Reads in flight. Two hide the turn-around of a read, the third a thread that is late. Each more
// puts off everything behind it: reads of one peer share its connection, with its signals.
constexpr std::size_t kWindow = 3;
// How far ahead of the first chunk that has not arrived a read may be started, so that the link has
// work while that chunk is not there yet at the stop before.
constexpr std::size_t kReach = 32;

std::vector<int> upstreams_of(const Schedule& schedule) {
  std::set<int> ranks;
  for (const IncomingChunk& incoming : schedule.receive) {
    if (!incoming.from_pool) ranks.insert(incoming.source);
  }
  return {ranks.begin(), ranks.end()};
}

// [offset, offset + bytes) of `memory` as reads to `destination`, cut at the borders of its
// regions.
Status append_reads(const RemoteMemory& memory, std::uint64_t offset, std::uint64_t bytes,
                    std::byte* destination, std::vector<ReadRange>& out) {
  auto piece = std::upper_bound(
      memory.pieces.begin(), memory.pieces.end(), offset,
      [](std::uint64_t at, const RemoteMemory::Piece& p) { return at < p.offset; });
  if (piece != memory.pieces.begin()) --piece;
  while (bytes > 0) {
    if (piece == memory.pieces.end() || offset < piece->offset ||
        offset >= piece->offset + piece->bytes) {
      return internal_error(concat("offset ", offset, " lies in no registered region"));
    }
    const std::uint64_t n = std::min(bytes, piece->offset + piece->bytes - offset);
    out.push_back({piece->region, offset - piece->offset, destination, n});
    offset += n;
    destination += n;
    bytes -= n;
    ++piece;
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<ChainSpread>> ChainSpread::create(ChainContext context) {
  const auto upstream_count = static_cast<Progress::Slot>(upstreams_of(context.schedule).size());
  CKPT_ASSIGN_OR_RETURN(Progress upstream, Progress::create_private(upstream_count));
  return std::unique_ptr<ChainSpread>(new ChainSpread(std::move(context), std::move(upstream)));
}

ChainSpread::ChainSpread(ChainContext context, Progress upstream)
    : context_(std::move(context)),
      upstream_ranks_(upstreams_of(context_.schedule)),
      upstream_(std::move(upstream)) {
  std::map<int, std::uint64_t> forwarded;
  for (const IncomingChunk& incoming : context_.schedule.receive) {
    forwarded_with_.push_back(++forwarded[incoming.next_stop]);
  }
  context_.signals.open(context_.epoch, context_.pass,
                        [this](const ProgressSignal& signal) { hear(signal); });
}

ChainSpread::~ChainSpread() { context_.signals.close(context_.epoch, context_.pass); }

Progress::Slot ChainSpread::upstream_slot(int rank) const {
  const auto at = std::lower_bound(upstream_ranks_.begin(), upstream_ranks_.end(), rank);
  return static_cast<Progress::Slot>(at - upstream_ranks_.begin());
}

void ChainSpread::hear(const ProgressSignal& signal) {
  if (signal.kind == ProgressSignal::Kind::kReceived) {
    if (std::binary_search(upstream_ranks_.begin(), upstream_ranks_.end(), signal.from)) {
      upstream_.publish(upstream_slot(signal.from), signal.value);
    }
    return;
  }
  const Link link{context_.rank, signal.from};
  const std::vector<Link>& links = context_.layout.links();
  if (std::binary_search(links.begin(), links.end(), link)) {
    context_.progress.publish(context_.layout.forwarded(link), signal.value);
  }
}

std::string ChainSpread::describe(const IncomingChunk& incoming) const {
  // An owner of another job is known by its own name there, not by its number here.
  const auto pool = context_.pools.find(incoming.source);
  return concat("bucket ", incoming.chunk.bucket, " from ",
                incoming.from_pool ? "the pool" : "the ring", " of ",
                incoming.from_pool && pool != context_.pools.end() && pool->second.peer != nullptr
                    ? pool->second.peer->label()
                    : concat("rank ", incoming.source));
}

bool ChainSpread::has_room(std::size_t sequence) const {
  const ReceiveTarget& target = context_.target;
  const std::vector<IncomingChunk>& stream = context_.schedule.receive;
  if (target.ring != nullptr) return context_.space.is_free(stream[sequence].chunk.bucket);
  if (sequence < target.slots) return true;
  const std::size_t before = sequence - target.slots;  // what lies in the slot
  const Progress& progress = context_.progress;
  const bool pulled = std::all_of(target.pullers.begin(), target.pullers.end(), [&](int puller) {
    return progress.value(context_.layout.pulled(puller, context_.rank, StreamKind::kReceive)) >
           before;
  });
  const int next_stop = stream[before].next_stop;
  return pulled &&
         (next_stop < 0 || progress.value(context_.layout.forwarded({context_.rank, next_stop})) >=
                               forwarded_with_[before]);
}

Status ChainSpread::wait_for_room(std::size_t sequence, Deadline deadline,
                                  AbortSignal& abort) const {
  const ReceiveTarget& target = context_.target;
  const std::vector<IncomingChunk>& stream = context_.schedule.receive;
  if (target.ring != nullptr) {
    return context_.space.wait(stream[sequence].chunk.bucket, deadline, abort);
  }
  if (sequence < target.slots) return Status();
  const std::size_t before = sequence - target.slots;
  for (const int puller : target.pullers) {
    const auto slot = context_.layout.pulled(puller, context_.rank, StreamKind::kReceive);
    CKPT_RETURN_IF_ERROR(context_.progress.wait(slot, before + 1, deadline, abort)
                             .with_context(concat("rank ", puller, " pulls what rank ",
                                                  context_.rank, " has received")));
  }
  const int next_stop = stream[before].next_stop;
  if (next_stop < 0) return Status();
  return context_.progress
      .wait(context_.layout.forwarded({context_.rank, next_stop}), forwarded_with_[before],
            deadline, abort)
      .with_context(
          concat("rank ", next_stop, " takes what rank ", context_.rank, " has received"));
}

/// Of the chunk's owner, where that does not hold everything; else null.
const RemoteMemory* ChainSpread::filling_pool(const IncomingChunk& incoming) const {
  if (!incoming.from_pool) return nullptr;
  const auto pool = context_.pools.find(incoming.source);
  return pool == context_.pools.end() || pool->second.filled == nullptr ? nullptr : &pool->second;
}

std::uint64_t ChainSpread::end_in_pool(const IncomingChunk& incoming) const {
  const auto ranges = chunk_ranges(context_.plan, incoming.chunk);
  return ranges.empty() ? 0 : ranges.back().source_offset + ranges.back().bytes;
}

bool ChainSpread::can_start(std::size_t sequence) const {
  const IncomingChunk& incoming = context_.schedule.receive[sequence];
  if (!has_room(sequence)) return false;
  if (!incoming.from_pool) {
    return upstream_.value(upstream_slot(incoming.source)) >= incoming.source_ready;
  }
  const RemoteMemory* pool = filling_pool(incoming);
  return pool == nullptr || pool->filled->value(pool->filled_slot) >= end_in_pool(incoming);
}

Status ChainSpread::wait_until_startable(std::size_t sequence, Deadline deadline,
                                         AbortSignal& abort) const {
  CKPT_RETURN_IF_ERROR(wait_for_room(sequence, deadline, abort));
  const IncomingChunk& incoming = context_.schedule.receive[sequence];
  if (const RemoteMemory* pool = filling_pool(incoming)) {
    return pool->filled->wait(pool->filled_slot, end_in_pool(incoming), deadline, abort)
        .with_context(concat(describe(incoming), ", which is being filled itself"));
  }
  if (incoming.from_pool) return Status();
  return upstream_.wait(upstream_slot(incoming.source), incoming.source_ready, deadline, abort)
      .with_context(describe(incoming));
}

Status ChainSpread::start(std::size_t sequence, Deadline deadline) {
  const IncomingChunk& incoming = context_.schedule.receive[sequence];
  const auto& memories = incoming.from_pool ? context_.pools : context_.rings;
  const auto memory = memories.find(incoming.source);
  if (memory == memories.end())
    return internal_error(concat(describe(incoming), ": no descriptor of it"));
  const RemoteMemory& source = memory->second;
  const ReceiveTarget& target = context_.target;
  const Chunk& chunk = incoming.chunk;
  const std::uint64_t ring_offset =
      context_.plan.places_of(context_.plan.parts[chunk.part])[0].ring_offset;
  std::vector<ReadRange> reads;
  for (const SourceRange& range : chunk_ranges(context_.plan, chunk)) {
    const std::uint64_t in_chunk = range.part_offset - chunk.part_offset;
    const std::uint64_t from =
        incoming.from_pool ? range.source_offset
        : source.slots > 0
            ? (incoming.source_ready - 1) % source.slots * source.slot_bytes + in_chunk
            : ring_offset + range.part_offset;
    std::byte* const to =
        target.ring != nullptr
            ? target.ring + ring_offset + range.part_offset
            : target.staging + sequence % target.slots * target.slot_bytes + in_chunk;
    CKPT_RETURN_IF_ERROR(
        append_reads(source, from, range.bytes, to, reads).with_context(describe(incoming)));
  }
  states_[sequence] = ChunkState::kInFlight;
  in_flight_.push_back({sequence, context_.transport.read(*source.peer, reads, deadline)});
  return Status();
}

Status ChainSpread::finish_oldest(Deadline deadline, AbortSignal& abort) {
  const InFlight oldest = std::move(in_flight_.front());
  in_flight_.pop_front();
  CKPT_RETURN_IF_ERROR(oldest.read->wait(deadline, &abort)
                           .with_context(describe(context_.schedule.receive[oldest.sequence])));
  bytes_.fetch_add(oldest.read->bytes(), std::memory_order_relaxed);
  states_[oldest.sequence] = ChunkState::kArrived;
  // Others count on the order of the stream: nothing is reported before what comes before it.
  while (arrived_ < states_.size() && states_[arrived_] == ChunkState::kArrived) {
    CKPT_RETURN_IF_ERROR(report(context_.schedule.receive[arrived_++]));
  }
  return Status();
}

/// `incoming` is the last of the chunks that have arrived, all those before it included.
Status ChainSpread::report(const IncomingChunk& incoming) {
  const std::uint64_t received = arrived_;
  context_.progress.publish(context_.layout.stream(context_.rank, StreamKind::kReceive), received);

  const auto tell = [&](int rank, ProgressSignal::Kind kind, std::uint64_t value) -> Status {
    const auto peer = context_.rings.find(rank);
    if (peer == context_.rings.end()) return internal_error(concat("no descriptor of rank ", rank));
    const ProgressSignalBytes bytes =
        encode_progress_signal({kind, context_.epoch, context_.pass, context_.rank, value});
    return context_.transport.signal(*peer->second.peer, bytes);
  };
  if (incoming.next_stop >= 0) {
    CKPT_RETURN_IF_ERROR(tell(incoming.next_stop, ProgressSignal::Kind::kReceived, received));
  }
  if (!incoming.from_pool) {
    CKPT_RETURN_IF_ERROR(
        tell(incoming.source, ProgressSignal::Kind::kForwarded, ++taken_[incoming.source]));
  }
  return Status();
}

/// The first chunk within reach that can be read now; the end of the stream where there is none.
std::size_t ChainSpread::find_startable() const {
  const std::vector<IncomingChunk>& stream = context_.schedule.receive;
  const std::size_t end = std::min(stream.size(), arrived_ + kReach);
  for (std::size_t i = arrived_; i < end; ++i) {
    if (states_[i] == ChunkState::kWaiting && can_start(i)) return i;
  }
  return stream.size();
}

Status ChainSpread::run(Deadline deadline, AbortSignal& abort) {
  const std::vector<IncomingChunk>& stream = context_.schedule.receive;
  states_.assign(stream.size(), ChunkState::kWaiting);
  const auto work = [&]() -> Status {
    while (arrived_ < stream.size()) {
      const std::size_t next = in_flight_.size() < kWindow ? find_startable() : stream.size();
      if (next < stream.size()) {
        if (abort.raised()) return abort.cause();
        CKPT_RETURN_IF_ERROR(start(next, deadline));
      } else if (!in_flight_.empty()) {
        CKPT_RETURN_IF_ERROR(finish_oldest(deadline, abort));
      } else {
        CKPT_RETURN_IF_ERROR(wait_until_startable(arrived_, deadline, abort));
      }
    }
    return Status();
  };
  Status status = work();
  // The destructor of a read blocks until its destination is safe: the ring is not freed under a
  // late write.
  in_flight_.clear();
  return status;
}

}  // namespace ckpt
