#include "plan/schedule_simulation.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt::testing {
namespace {

constexpr std::uint8_t kGarbage = 0xEE;

std::uint8_t pattern(std::uint32_t tensor, std::uint64_t byte) {
  return static_cast<std::uint8_t>((tensor * 1000003ull + byte * 7919ull) >> 3);
}

}  // namespace

ScheduleSimulation::ScheduleSimulation(const Topology& topology, const Plan& plan,
                                       std::uint64_t seed)
    : topology_(topology),
      plan_(plan),
      per_rank_(plan.options.sharing == RingSharing::kPerRank),
      staged_(per_rank_ && plan.options.staging_chunks > 0),
      random_(seed) {
  const std::size_t world_size = topology.ranks.size();
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    const Schedule& s =
        schedules_.emplace_back(make_schedule(plan, topology.ranks, static_cast<int>(rank)));
    staging_.push_back({Bytes(s.fill_slots * plan.options.chunk_bytes, kGarbage),
                        Bytes(s.receive_slots * plan.options.cross_chunk_bytes, kGarbage)});
  }
  rings_.assign(world_size, Bytes(plan.options.ring_bytes, kGarbage));
  taken_.assign(world_size, std::vector<std::uint64_t>(world_size, 0));
  pulled_.assign(world_size, std::vector<std::uint64_t>(2 * world_size, 0));
  make_pools();
  make_lanes();
}

void ScheduleSimulation::make_pools() {
  const Catalog& catalog = topology_.catalog;
  pools_.resize(topology_.ranks.size());
  for (std::uint32_t t = 0; t < catalog.tensors().size(); ++t) {
    const CatalogTensor& tensor = catalog.tensors()[t];
    for (const Replica& replica : catalog.replicas(tensor)) {
      Bytes& pool = pools_[replica.rank];
      pool.resize(std::max<std::size_t>(pool.size(), replica.offset + tensor.info->bytes));
      for (std::uint64_t i = 0; i < tensor.info->bytes; ++i) {
        pool[replica.offset + i] = pattern(t, i);
      }
    }
  }
}

void ScheduleSimulation::make_lanes() {
  for (int rank = 0; rank < static_cast<int>(schedules_.size()); ++rank) {
    const Schedule& s = schedules_[rank];
    const std::uint64_t buckets = topology_.ranks[rank].recipient ? s.buckets.size() : 0;
    for (const auto& [kind, steps] :
         {std::pair(LaneKind::kFill, s.fill.size()),
          std::pair(LaneKind::kReceive, s.receive.size()),
          std::pair(LaneKind::kPull, s.pull.size()), std::pair(LaneKind::kDeliver, buckets)}) {
      lanes_.push_back({.rank = rank, .kind = kind, .steps = steps});
      lanes_.back().weight = random_() % 4 == 0 ? 1 : 30;  // some are slow
    }
  }
}

const ScheduleSimulation::Lane& ScheduleSimulation::lane(int rank, LaneKind kind) const {
  return lanes_[static_cast<std::size_t>(rank) * 4 + static_cast<std::size_t>(kind)];
}

std::uint64_t ScheduleSimulation::pulled(int recipient, int rank, StreamKind kind) const {
  return pulled_[recipient][static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(kind)];
}

std::string ScheduleSimulation::run() {
  std::vector<std::uint64_t> chances;
  while (failure_.empty()) {
    chances.clear();
    bool all_done = true;
    for (const Lane& lane : lanes_) {
      const bool done = lane.done == lane.steps;
      all_done &= done;
      chances.push_back(!done && (lane.under_way || may_begin(lane)) ? lane.weight : 0);
    }
    if (all_done) return "";
    std::uint64_t sum = 0;
    for (const std::uint64_t chance : chances) sum += chance;
    if (sum == 0) return stuck();
    std::uint64_t pick = random_() % sum;
    std::size_t chosen = 0;
    for (; pick >= chances[chosen]; ++chosen) pick -= chances[chosen];
    Lane& lane = lanes_[chosen];
    lane.under_way ? end(lane) : begin(lane);
  }
  return failure_;
}

std::string ScheduleSimulation::stuck() const {
  static constexpr const char* kNames[] = {" fill ", " receive ", " pull ", " deliver "};
  std::string text = "deadlock:";
  for (const Lane& lane : lanes_) {
    if (lane.done == lane.steps) continue;
    text += concat(" rank ", lane.rank, kNames[static_cast<int>(lane.kind)], lane.done, "/",
                   lane.steps, ";");
  }
  return text;
}

bool ScheduleSimulation::may_begin(const Lane& l) const {
  const Schedule& s = schedules_[l.rank];
  switch (l.kind) {
    case LaneKind::kFill:
      return may_land(l.rank, StreamKind::kFill, l.done, s.fill[l.done]);
    case LaneKind::kReceive: {
      const IncomingChunk& in = s.receive[l.done];
      return may_land(l.rank, StreamKind::kReceive, l.done, in.chunk) &&
             (in.from_pool || lane(in.source, LaneKind::kReceive).done >= in.source_ready);
    }
    case LaneKind::kPull: {
      const Pull& pull = s.pull[l.done];
      const LaneKind stream = pull.kind == StreamKind::kFill ? LaneKind::kFill : LaneKind::kReceive;
      return lane(pull.rank, stream).done > pull.sequence && ring_is_free(l.rank, pull.chunk);
    }
    case LaneKind::kDeliver: {
      const BucketSchedule& bucket = s.buckets[l.done];
      if (pulls(l.rank)) return lane(l.rank, LaneKind::kPull).done >= bucket.pulled;
      return std::ranges::all_of(bucket.arrived, [&](const StreamNeed& need) {
        const LaneKind kind = need.kind == StreamKind::kFill ? LaneKind::kFill : LaneKind::kReceive;
        return lane(need.rank, kind).done >= need.chunks;
      });
    }
  }
  return false;
}

bool ScheduleSimulation::may_land(int rank, StreamKind kind, std::uint64_t sequence,
                                  const Chunk& chunk) const {
  if (!staged(rank)) return ring_is_free(ring_of(rank), chunk);
  const Schedule& s = schedules_[rank];
  const std::uint64_t slots = kind == StreamKind::kFill ? s.fill_slots : s.receive_slots;
  if (sequence < slots) return true;
  const std::uint64_t before = sequence - slots;
  for (int r = 0; r < static_cast<int>(schedules_.size()); ++r) {
    const PlanRank& other = topology_.ranks[r];
    const bool here = other.recipient && other.host == topology_.ranks[rank].host;
    if (here && pulled(r, rank, kind) <= before) return false;
  }
  if (kind == StreamKind::kFill || s.receive[before].next_stop < 0) return true;
  std::uint64_t upto = 0;  // of the chunks up to `before`, how many go to the same next stop
  for (std::uint64_t i = 0; i <= before; ++i) {
    upto += s.receive[i].next_stop == s.receive[before].next_stop;
  }
  return taken_[s.receive[before].next_stop][rank] >= upto;
}

bool ScheduleSimulation::ring_is_free(int ring, const Chunk& chunk) const {
  const std::int32_t last = plan_.buckets[chunk.bucket].reuse_after;
  if (last < 0) return true;
  for (int r = 0; r < static_cast<int>(schedules_.size()); ++r) {
    if (ring_of(r) == ring && topology_.ranks[r].recipient &&
        lane(r, LaneKind::kDeliver).done <= static_cast<std::uint64_t>(last)) {
      return false;
    }
  }
  const int host = per_rank_ ? topology_.ranks[ring].host : ring;
  for (int r = 0; r < static_cast<int>(schedules_.size()); ++r) {
    if (topology_.ranks[r].host != host || !topology_.ranks[r].recipient) continue;
    const Schedule& s = schedules_[r];
    for (std::int32_t b = 0; b <= last; ++b) {
      for (const LinkNeed& need : s.buckets[b].forwarded) {
        if (taken_[need.to][need.from] < need.chunks) return false;
      }
    }
    if (pulls(r) && !staged_ && lane(r, LaneKind::kPull).done < s.buckets[last].pulled) {
      return false;
    }
  }
  return true;
}

void ScheduleSimulation::begin(Lane& l) {
  l.under_way = true;
  l.read = source(l);
  // Whoever still needs what lay there will notice.
  if (std::uint8_t* to = target(l)) std::fill_n(to, l.read.size(), kGarbage);
}

void ScheduleSimulation::end(Lane& l) {
  if (source(l) != l.read) fail(l, "the source was overwritten while it was read");
  if (std::uint8_t* to = target(l)) std::ranges::copy(l.read, to);
  const Schedule& s = schedules_[l.rank];
  if (l.kind == LaneKind::kReceive && !s.receive[l.done].from_pool) {
    ++taken_[l.rank][s.receive[l.done].source];
  }
  if (l.kind == LaneKind::kPull) {
    const Pull& pull = s.pull[l.done];
    std::uint64_t& count = pulled_[l.rank][pull.rank * 2 + static_cast<int>(pull.kind)];
    if (count++ != pull.sequence) fail(l, "pulls of one stream are out of order");
  }
  if (l.kind == LaneKind::kDeliver) {
    const Bucket& bucket = plan_.buckets[l.done];
    std::size_t at = 0;
    for (const BucketTensor& tensor : plan_.tensors_of(bucket)) {
      const std::uint64_t bytes = topology_.catalog.tensors()[tensor.tensor].info->bytes;
      for (std::uint64_t i = 0; i < bytes; ++i) {
        if (l.read[at++] == pattern(tensor.tensor, i)) continue;
        return fail(l, concat("wrong byte ", i, " of tensor ", tensor.tensor));
      }
    }
  }
  l.under_way = false;
  ++l.done;
}

void ScheduleSimulation::fail(const Lane& l, const std::string& what) {
  failure_ =
      concat("rank ", l.rank, ", lane ", static_cast<int>(l.kind), ", step ", l.done, ": ", what);
}

std::uint64_t ScheduleSimulation::ring_offset(const Chunk& chunk) const {
  return plan_.places_of(plan_.parts[chunk.part])[0].ring_offset + chunk.part_offset;
}

std::uint8_t* ScheduleSimulation::landing(int rank, StreamKind kind, std::uint64_t sequence,
                                          const Chunk& chunk) {
  if (!staged(rank)) return &rings_[ring_of(rank)][ring_offset(chunk)];
  const Schedule& s = schedules_[rank];
  const bool fill = kind == StreamKind::kFill;
  const std::uint64_t slots = fill ? s.fill_slots : s.receive_slots;
  const std::uint64_t bytes = fill ? plan_.options.chunk_bytes : plan_.options.cross_chunk_bytes;
  return &staging_[rank][static_cast<std::size_t>(kind)][sequence % slots * bytes];
}

ScheduleSimulation::Bytes ScheduleSimulation::from_pool(const Chunk& chunk) const {
  Bytes bytes(chunk.bytes, 0);
  const Bytes& pool = pools_[plan_.parts[chunk.part].owner];
  for (const SourceRange& range : chunk_ranges(plan_, chunk)) {
    std::copy_n(pool.begin() + static_cast<std::ptrdiff_t>(range.source_offset), range.bytes,
                bytes.begin() + static_cast<std::ptrdiff_t>(range.part_offset - chunk.part_offset));
  }
  return bytes;
}

ScheduleSimulation::Bytes ScheduleSimulation::delivered(const Bucket& bucket, int rank) const {
  Bytes bytes;
  for (const BucketTensor& tensor : plan_.tensors_of(bucket)) {
    const auto at = rings_[ring_of(rank)].begin() + static_cast<std::ptrdiff_t>(tensor.ring_offset);
    const std::uint64_t size = topology_.catalog.tensors()[tensor.tensor].info->bytes;
    bytes.insert(bytes.end(), at, at + static_cast<std::ptrdiff_t>(size));
  }
  return bytes;
}

ScheduleSimulation::Bytes ScheduleSimulation::source(const Lane& l) const {
  const Schedule& s = schedules_[l.rank];
  const auto landed = [&](int rank, StreamKind kind, std::uint64_t sequence, const Chunk& chunk) {
    const std::uint8_t* at =
        const_cast<ScheduleSimulation*>(this)->landing(rank, kind, sequence, chunk);
    return Bytes(at, at + chunk.bytes);
  };
  switch (l.kind) {
    case LaneKind::kFill:
      return from_pool(s.fill[l.done]);
    case LaneKind::kReceive: {
      const IncomingChunk& in = s.receive[l.done];
      if (in.from_pool) return from_pool(in.chunk);
      return landed(in.source, StreamKind::kReceive, in.source_ready - 1, in.chunk);
    }
    case LaneKind::kPull: {
      const Pull& pull = s.pull[l.done];
      return landed(pull.rank, pull.kind, pull.sequence, pull.chunk);
    }
    case LaneKind::kDeliver:
      return delivered(plan_.buckets[l.done], l.rank);
  }
  return {};
}

std::uint8_t* ScheduleSimulation::target(const Lane& l) {
  const Schedule& s = schedules_[l.rank];
  switch (l.kind) {
    case LaneKind::kFill:
      return landing(l.rank, StreamKind::kFill, l.done, s.fill[l.done]);
    case LaneKind::kReceive:
      return landing(l.rank, StreamKind::kReceive, l.done, s.receive[l.done].chunk);
    case LaneKind::kPull: {
      const Pull& pull = s.pull[l.done];
      if (!staged_ && pull.rank == l.rank) return nullptr;  // it landed in our ring
      return &rings_[l.rank][ring_offset(pull.chunk)];
    }
    case LaneKind::kDeliver:
      return nullptr;
  }
  return nullptr;
}

}  // namespace ckpt::testing
