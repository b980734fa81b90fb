#include "plan/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ckpt {
namespace {

/// Builds one rank's schedule, bucket by bucket. Within a bucket all streams and pull lists of all
/// ranks follow one order: by the end that a full chunk would have in its part, then by part. So
/// parts that share a stream, and streams that share a recipient, advance together, and as the
/// order is the same everywhere, nobody waits in a circle.
///
/// Where memory allows it a chunk is put off by one chunk for each hop that it has come. Then each
/// host takes the parts of near owners before those of far ones, all links work at once, and what
/// a host asks its neighbour for has arrived there a row of chunks earlier.
class ScheduleBuilder {
 public:
  ScheduleBuilder(const Plan& plan, std::span<const PlanRank> ranks, int rank)
      : plan_(plan),
        ranks_(ranks),
        rank_(rank),
        host_(ranks[rank].host),
        first_incoming_(ranks.size(), kNone) {
    for (auto* counts : {&done_, &pulled_}) {
      for (std::vector<std::uint64_t>& of_rank : *counts) of_rank.resize(ranks.size(), 0);
    }
    const auto recipients_here = std::ranges::count_if(
        ranks, [&](const PlanRank& r) { return r.recipient && r.host == host_; });
    const bool own_ring = plan.options.sharing == RingSharing::kPerRank;
    schedule_.direct = own_ring && ranks[rank].recipient && recipients_here == 1 &&
                       (plan.options.receive_into_rings || !receives_here());
    pulls_ = own_ring && ranks[rank].recipient && !schedule_.direct;
    waits_for_streams_ = !own_ring || schedule_.direct;
  }

  Schedule build() && {
    schedule_.buckets.reserve(plan_.buckets.size());
    for (const Bucket& bucket : plan_.buckets) {
      schedule_.buckets.emplace_back();
      collect(bucket);
      choose_order();
      emit_fill();
      emit_receive();
      if (pulls_) emit_pulls();
      count_done();
      if (waits_for_streams_) add_arrived();
      add_forwarded();
    }
    if (pulls_) share_staging();
    return std::move(schedule_);
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  /// A part at its stop on this host.
  struct Local {
    std::uint32_t part;
    StreamKind kind;
    int rank;
    std::uint32_t chunks;
    std::uint32_t hops;
    int source;  ///< whom the rank reads
    bool from_pool;
    std::int32_t next_stop;  ///< who reads it out of the ring of `rank`
  };
  /// A part in the receive stream of a rank of any host.
  struct Incoming {
    int rank;
    std::uint32_t part;
    std::uint32_t chunks;
    std::uint32_t hops;
    std::uint32_t next;   ///< in incoming_, of the same rank
    std::uint32_t count;  ///< of the same rank, this one included
  };
  using CountOfRank = std::vector<std::uint64_t>;

  bool receives_here() const {
    return std::ranges::any_of(plan_.parts, [&](const Part& part) {
      return std::ranges::any_of(plan_.stops_of(part), [&](const Stop& stop) {
        return stop.host == host_ && stop.rank != part.owner;
      });
    });
  }

  std::uint64_t cut(StreamKind kind) const {
    return kind == StreamKind::kFill ? plan_.options.chunk_bytes : plan_.options.cross_chunk_bytes;
  }

  std::uint32_t chunk_count(const Part& part, StreamKind kind) const {
    return static_cast<std::uint32_t>((part.bytes + cut(kind) - 1) / cut(kind));
  }

  Chunk chunk_of(const Local& local, std::uint32_t number) const {
    const Part& part = plan_.parts[local.part];
    const std::uint64_t offset = number * cut(local.kind);
    return {local.part, part.bucket, offset, std::min(cut(local.kind), part.bytes - offset)};
  }

  /// Fills local_ and incoming_ with the parts of `bucket`.
  void collect(const Bucket& bucket) {
    for (const Incoming& incoming : incoming_) first_incoming_[incoming.rank] = kNone;
    incoming_.clear();
    local_.clear();
    for (std::uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
      const Part& part = plan_.parts[p];
      if (part.bytes == 0) continue;
      const std::uint32_t received_chunks = chunk_count(part, StreamKind::kReceive);
      int previous = part.owner;
      const std::span<const Stop> stops = plan_.stops_of(part);
      std::uint32_t hops = !stops.empty() && stops.front().host == ranks_[part.owner].host ? 0 : 1;
      for (std::size_t i = 0; i < stops.size(); ++i) {
        const Stop& stop = stops[i];
        const bool fill = stop.rank == part.owner;
        if (!fill) {
          std::uint32_t& first = first_incoming_[stop.rank];
          const std::uint32_t count = first == kNone ? 1 : incoming_[first].count + 1;
          incoming_.push_back({stop.rank, p, received_chunks, hops, first, count});
          first = static_cast<std::uint32_t>(incoming_.size() - 1);
        }
        if (stop.host == host_) {
          const bool goes_on = !fill && i + 1 < stops.size();
          local_.push_back({p, fill ? StreamKind::kFill : StreamKind::kReceive, stop.rank,
                            fill ? chunk_count(part, StreamKind::kFill) : received_chunks, hops,
                            previous, previous == part.owner, goes_on ? stops[i + 1].rank : -1});
        }
        previous = stop.rank;
        ++hops;
      }
    }
  }

  /// A slot of the staging is free when the next stop has taken what lies there, one hop later than
  /// it came. That must not come later in the order than what the slot is wanted for: two rows of a
  /// stream must fit. Every rank has at least one chunk of staging for what it receives.
  void choose_order() {
    std::uint32_t longest_row = 0;
    for (const Incoming& incoming : incoming_) longest_row = std::max(longest_row, incoming.count);
    const bool staged =
        plan_.options.sharing == RingSharing::kPerRank && plan_.options.staging_chunks > 0;
    puts_off_ = !staged || 2 * std::uint64_t{longest_row} <=
                               plan_.options.chunk_bytes / plan_.options.cross_chunk_bytes;
    if (puts_off_) {
      std::ranges::sort(local_, {}, [](const Local& l) { return std::pair(l.hops, l.part); });
    };
  }

  /// By how many (received) chunks a part is put off after so many hops.
  std::uint32_t delay(std::uint32_t hops) const { return puts_off_ ? hops : 0; }

  /// Calls emit(local, number) for every chunk of this rank's stream of one kind, in its order.
  template <typename Emit>
  void for_each_own_chunk(StreamKind kind, Emit emit) {
    bool more = true;
    for (std::uint32_t row = 0; more; ++row) {
      more = false;
      for (const Local& local : local_) {
        const std::uint32_t first_row = delay(local.hops);
        if (local.rank != rank_ || local.kind != kind || row >= first_row + local.chunks) continue;
        more = true;
        if (row >= first_row) emit(local, row - first_row);
      }
    }
  }

  void emit_fill() {
    for_each_own_chunk(StreamKind::kFill, [&](const Local& local, std::uint32_t number) {
      schedule_.fill.push_back(chunk_of(local, number));
    });
  }

  void emit_receive() {
    for_each_own_chunk(StreamKind::kReceive, [&](const Local& local, std::uint32_t number) {
      const std::uint64_t ready =
          local.from_pool ? 0 : received_before(local.source, local, number) + 1;
      schedule_.receive.push_back(
          {chunk_of(local, number), local.source, local.from_pool, ready, local.next_stop});
    });
  }

  /// How many chunks of the receive stream of `source` come before the one that `local` takes.
  std::uint64_t received_before(int source, const Local& local, std::uint32_t number) const {
    const std::uint32_t own_delay = delay(local.hops - 1), row = number + own_delay;
    std::uint64_t count = done(StreamKind::kReceive)[source];
    for (std::uint32_t i = first_incoming_[source]; i != kNone; i = incoming_[i].next) {
      const Incoming& other = incoming_[i];
      const std::uint32_t first_row = delay(other.hops);
      const bool before = std::pair(first_row, other.part) < std::pair(own_delay, local.part);
      const std::uint32_t rows = row + (before ? 1 : 0);
      if (rows > first_row) count += std::min(other.chunks, rows - first_row);
    }
    return count;
  }

  void emit_pulls() {
    order_.clear();
    for (std::uint32_t i = 0; i < local_.size(); ++i) {
      for (std::uint32_t number = 0; number < local_[i].chunks; ++number) {
        order_.emplace_back((number + 1) * cut(local_[i].kind) + put_off(local_[i]), i);
      }
    }
    std::ranges::sort(order_);  // local_ is in the order of hops, then parts
    for (const auto& [end, i] : order_) {
      const Local& local = local_[i];
      const auto number = static_cast<std::uint32_t>((end - put_off(local)) / cut(local.kind) - 1);
      std::uint64_t& sequence = pulled_[static_cast<std::size_t>(local.kind)][local.rank];
      schedule_.pull.push_back({local.rank, local.kind, sequence++, chunk_of(local, number)});
    }
  }

  std::uint64_t put_off(const Local& local) const {
    return delay(local.hops) * cut(StreamKind::kReceive);
  }

  /// A rank that both fills and receives gives one of its staging chunks to what it receives.
  void share_staging() {
    const auto chunks = static_cast<std::uint64_t>(plan_.options.staging_chunks);
    const bool fills = !schedule_.fill.empty(), receives = !schedule_.receive.empty();
    const std::uint64_t for_receive = fills && receives ? 1 : receives ? chunks : 0;
    if (chunks == 0) return;
    schedule_.fill_slots = fills ? chunks - for_receive : 0;
    schedule_.receive_slots =
        for_receive * plan_.options.chunk_bytes / plan_.options.cross_chunk_bytes;
  }

  void count_done() {
    for (const Incoming& incoming : incoming_) {
      done(StreamKind::kReceive)[incoming.rank] += incoming.chunks;
    }
    for (const Local& local : local_) {
      if (local.kind == StreamKind::kFill) done(StreamKind::kFill)[local.rank] += local.chunks;
    }
    schedule_.buckets.back().pulled = schedule_.pull.size();
  }

  void add_arrived() {
    std::vector<StreamNeed>& needs = schedule_.buckets.back().arrived;
    for (const Local& local : local_) {
      const bool known = std::ranges::any_of(needs, [&](const StreamNeed& need) {
        return need.rank == local.rank && need.kind == local.kind;
      });
      if (!known) needs.push_back({local.rank, local.kind, done(local.kind)[local.rank]});
    }
  }

  void add_forwarded() {
    const auto same_link = [](const LinkNeed& link, const Local& local) {
      return link.from == local.rank && link.to == local.next_stop;
    };
    touched_.clear();
    for (const Local& local : local_) {
      if (local.next_stop < 0) continue;
      auto link = std::ranges::find_if(links_, [&](const auto& l) { return same_link(l, local); });
      if (link == links_.end()) {
        link = links_.insert(links_.end(), {local.rank, local.next_stop, 0});
      }
      link->chunks += local.chunks;
      touched_.push_back(static_cast<std::size_t>(link - links_.begin()));
    }
    std::ranges::sort(touched_);
    touched_.erase(std::ranges::unique(touched_).begin(), touched_.end());
    for (const std::size_t link : touched_) {
      schedule_.buckets.back().forwarded.push_back(links_[link]);
    }
  }

  CountOfRank& done(StreamKind kind) { return done_[static_cast<std::size_t>(kind)]; }
  const CountOfRank& done(StreamKind kind) const { return done_[static_cast<std::size_t>(kind)]; }

  const Plan& plan_;
  const std::span<const PlanRank> ranks_;
  const int rank_;
  const int host_;
  bool pulls_ = false;
  bool waits_for_streams_ = false;
  Schedule schedule_;

  std::array<CountOfRank, 2> done_;  ///< by kind and rank: chunks of the buckets before this one
  std::array<CountOfRank, 2> pulled_;
  std::vector<LinkNeed> links_;  ///< out of rings of this host, up to this bucket

  // Of one bucket, kept to reuse their memory.
  bool puts_off_ = false;
  std::vector<Local> local_;
  std::vector<Incoming> incoming_;
  std::vector<std::uint32_t> first_incoming_;  ///< of each rank, in incoming_
  std::vector<std::pair<std::uint64_t, std::uint32_t>> order_;
  std::vector<std::size_t> touched_;
};

}  // namespace

Schedule make_schedule(const Plan& plan, std::span<const PlanRank> ranks, int rank) {
  return ScheduleBuilder(plan, ranks, rank).build();
}

std::vector<SourceRange> chunk_ranges(const Plan& plan, const Chunk& chunk) {
  const std::span<const SourceRange> ranges = plan.ranges_of(plan.parts[chunk.part]);
  const std::uint64_t begin = chunk.part_offset, end = begin + chunk.bytes;
  auto range = std::ranges::upper_bound(
      ranges, begin, {}, [](const SourceRange& r) { return r.part_offset + r.bytes; });
  std::vector<SourceRange> pieces;
  for (; range != ranges.end() && range->part_offset < end; ++range) {
    const std::uint64_t from = std::max(begin, range->part_offset);
    const std::uint64_t to = std::min(end, range->part_offset + range->bytes);
    pieces.push_back({range->source_offset + (from - range->part_offset), from, to - from});
  }
  return pieces;
}

}  // namespace ckpt
