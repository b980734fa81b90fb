#include "plan/bucket_drafts.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/weights.h"

namespace ckpt {
namespace {

/// Owners with data, so that any run of neighbours is spread over the hosts in proportion to their
/// numbers of owners: the i-th of n owners of a host stands at (i + 1/2) / n.
std::vector<int> turn_order(const SourceQueues& queues, std::span<const PlanRank> ranks) {
  struct Turn {
    std::uint64_t numerator, denominator;
    int host, owner;
  };
  std::vector<std::uint64_t> owners_of_host(ranks.size(), 0);
  std::vector<Turn> turns;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (queues.first_unit[rank] == queues.first_unit[rank + 1]) continue;
    turns.push_back({2 * owners_of_host[ranks[rank].host]++ + 1, 0, ranks[rank].host, rank});
  }
  for (Turn& turn : turns) turn.denominator = owners_of_host[turn.host];
  std::ranges::sort(turns, [](const Turn& a, const Turn& b) {
    const std::uint64_t left = a.numerator * b.denominator, right = b.numerator * a.denominator;
    return std::tie(left, a.host, a.owner) < std::tie(right, b.host, b.owner);
  });
  std::vector<int> owners;
  for (const Turn& turn : turns) owners.push_back(turn.owner);
  return owners;
}

/// Owners take turns, and what they give to a bucket is about equal.
class EvenDealer {
 public:
  EvenDealer(const SourceQueues& queues, std::span<const PlanRank> ranks,
             std::uint64_t bucket_bytes, std::uint64_t chunk_bytes)
      : queues_(queues),
        bucket_bytes_(bucket_bytes),
        most_parts_(std::max<std::uint64_t>(1, bucket_bytes / chunk_bytes)),
        next_unit_(queues.first_unit.begin(), queues.first_unit.end() - 1),
        owners_(turn_order(queues, ranks)),
        waiting_(owners_.size()) {}

  std::vector<PartDraft> deal() && {
    for (std::uint32_t bucket = 0; waiting_ > 0; ++bucket) {
      first_part_ = drafts_.size();
      room_ = level_ = bucket_bytes_;
      begin_parts(bucket);
      fill_parts();
      take_turns();
    }
    return std::move(drafts_);
  }

 private:
  using OpenPart = std::pair<std::uint64_t, std::size_t>;  ///< bytes so far, index into drafts_

  bool has_units(int owner) const { return next_unit_[owner] < queues_.first_unit[owner + 1]; }

  /// One unit of each owner whose turn it is. An owner whose unit does not fit is the first one of
  /// the next bucket; a unit that is larger than a bucket has one alone.
  void begin_parts(std::uint32_t bucket) {
    for (std::size_t left = std::min<std::size_t>(waiting_, most_parts_); left > 0; --left) {
      const int owner = owners_[turn_];
      const Unit& unit = queues_.units[next_unit_[owner]];
      const bool alone = drafts_.size() == first_part_ && unit.bytes > bucket_bytes_;
      if (alone) room_ = unit.bytes;
      if (unit.bytes > room_) return;
      take_unit(drafts_.emplace_back(PartDraft{owner, bucket, unit.first, unit.first, 0}));
      turn_ = (turn_ + 1) % owners_.size();
      --waiting_;
      if (alone) return;
    }
  }

  /// The smallest part grows until its owner's next unit does not fit: then all parts that can grow
  /// differ by at most one unit.
  void fill_parts() {
    open_.clear();
    for (std::size_t part = first_part_; part < drafts_.size(); ++part) offer(part);
    while (!open_.empty()) {
      std::ranges::pop_heap(open_, std::greater<>());
      const std::size_t smallest = open_.back().second;
      open_.pop_back();
      PartDraft& part = drafts_[smallest];
      const std::uint64_t level = open_.empty() ? level_ : std::min(level_, open_.front().first);
      if (part.bytes > level) return;
      do {
        if (!take_unit(part)) return;
      } while (part.bytes <= level && has_units(part.owner));
      offer(smallest);
    }
  }

  /// Lets a part grow on. Where its owner has given all it had, and that was a full share, the
  /// others get no further ahead of it than one unit.
  void offer(std::size_t part) {
    const PartDraft& p = drafts_[part];
    if (has_units(p.owner)) {
      open_.emplace_back(p.bytes, part);
      std::ranges::push_heap(open_, std::greater<>());
    } else if (p.bytes >= bucket_bytes_ / (drafts_.size() - first_part_)) {
      level_ = std::min(level_, p.bytes);
    }
  }

  bool take_unit(PartDraft& part) {
    const Unit& unit = queues_.units[next_unit_[part.owner]];
    if (unit.bytes > room_) return false;
    ++next_unit_[part.owner];
    part.end_tensor = unit.first + unit.count;
    part.bytes += unit.bytes;
    room_ -= unit.bytes;
    return true;
  }

  /// Those that gave and have more go to the end of the circle, over those that have gone.
  void take_turns() {
    std::size_t end = turn_ + waiting_;
    for (std::size_t part = first_part_; part < drafts_.size(); ++part) {
      const int owner = drafts_[part].owner;
      if (!has_units(owner)) continue;
      owners_[end++ % owners_.size()] = owner;
      ++waiting_;
    }
  }

  const SourceQueues& queues_;
  const std::uint64_t bucket_bytes_;
  const std::uint64_t most_parts_;
  std::vector<std::uint32_t> next_unit_;  ///< of each rank
  /// A circle: from turn_ on, the `waiting_` owners that have units left, in the order of turns.
  std::vector<int> owners_;
  std::size_t turn_ = 0;
  std::size_t waiting_;

  std::vector<PartDraft> drafts_;
  // Of one bucket.
  std::size_t first_part_ = 0;  ///< in drafts_
  std::uint64_t room_ = 0;      ///< left in it
  std::uint64_t level_ = 0;     ///< parts of more bytes do not grow
  std::vector<OpenPart> open_;  ///< a heap of the parts that can grow, smallest on top
};

/// Whether some of the owners that are read from other hosts need longer for a byte than others:
/// their network devices are slower, or more of them share one.
bool links_differ(const SourceQueues& queues, std::span<const PlanRank> ranks) {
  std::vector<bool> served(ranks.size(), false);
  for (const PlanRank& rank : ranks) {
    if (rank.recipient) served[rank.host] = true;
  }
  const std::vector<std::uint64_t> costs = device_costs(ranks);
  const std::vector<std::uint32_t> devices = device_numbers(ranks);
  std::vector<std::uint64_t> cost_of_device(ranks.size(), 0);
  std::vector<std::uint32_t> used;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (queues.first_unit[rank] == queues.first_unit[rank + 1] || served[ranks[rank].host]) {
      continue;
    }
    cost_of_device[devices[rank]] += costs[rank];
    used.push_back(devices[rank]);
  }
  return std::ranges::any_of(used, [&](std::uint32_t device) {
    return cost_of_device[device] != cost_of_device[used[0]];
  });
}

/// Every owner gives to every bucket in proportion to all that it gives: whatever its link needs
/// for that, all links are busy from the first bucket to the last.
class ProportionalDealer {
 public:
  ProportionalDealer(const SourceQueues& queues, std::span<const PlanRank> ranks,
                     std::uint64_t bucket_bytes, std::uint64_t least_part_bytes)
      : queues_(queues),
        bucket_bytes_(bucket_bytes),
        least_part_bytes_(least_part_bytes),
        most_owners_(std::max<std::uint64_t>(1, bucket_bytes / least_part_bytes)),
        owners_(ranks.size()),
        part_of_owner_(ranks.size()) {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      owners_[rank].next_unit = queues.first_unit[rank];
      for (std::uint32_t unit = queues.first_unit[rank]; unit < queues.first_unit[rank + 1];
           ++unit) {
        owners_[rank].all += queues.units[unit].bytes / kRingAlignment;
      }
      wait_for_turn(rank);
    }
  }

  std::vector<PartDraft> deal() && {
    for (std::uint32_t bucket = 0; !turns_.empty(); ++bucket) deal_bucket(bucket);
    return std::move(drafts_);
  }

 private:
  struct Owner {
    std::uint64_t all = 0, given = 0;  ///< in steps of kRingAlignment
    std::uint32_t next_unit = 0;
  };
  using Turn = std::pair<std::uint64_t, std::uint32_t>;  ///< when, and whose it is
  static constexpr std::uint64_t kMostPieces = 16;       ///< of one part
  static constexpr std::uint64_t kEnd = 1 << 24;         ///< the turns of each owner lie before it

  const Unit* next_unit(std::uint32_t rank) const {
    const std::uint32_t unit = owners_[rank].next_unit;
    return unit < queues_.first_unit[rank + 1] ? &queues_.units[unit] : nullptr;
  }

  /// A unit is due when half of it would be on its way.
  void wait_for_turn(std::uint32_t rank) {
    const Unit* unit = next_unit(rank);
    if (unit == nullptr) return;
    const Owner& owner = owners_[rank];
    const std::uint64_t middle = owner.given + unit->bytes / kRingAlignment / 2;
    turns_.emplace_back(middle * kEnd / std::max<std::uint64_t>(owner.all, 1), rank);
    std::ranges::push_heap(turns_, std::greater<>());
  }

  /// Ends with the first unit that does not fit; a unit that is larger than a bucket has one alone.
  /// Where the bucket has all owners that it may have, the others wait for the next one.
  void deal_bucket(std::uint32_t bucket) {
    std::uint64_t room = bucket_bytes_;
    std::vector<PartDraft> parts;
    std::vector<Turn> put_off;
    while (!turns_.empty()) {
      const auto [when, rank] = turns_.front();
      const Unit& unit = *next_unit(rank);
      const bool alone = parts.empty() && unit.bytes > bucket_bytes_;
      if (!alone && unit.bytes > room) break;
      std::ranges::pop_heap(turns_, std::greater<>());
      turns_.pop_back();
      std::optional<std::size_t>& part = part_of_owner_[rank];
      if (!part) {
        if (parts.size() == most_owners_) {
          put_off.emplace_back(when, rank);
          continue;
        }
        part = parts.size();
        parts.push_back({static_cast<int>(rank), bucket, unit.first, unit.first, 0});
      }
      PartDraft& draft = parts[*part];
      draft.end_tensor = unit.first + unit.count;
      draft.bytes += unit.bytes;
      room -= std::min(room, unit.bytes);
      owners_[rank].given += unit.bytes / kRingAlignment;
      ++owners_[rank].next_unit;
      wait_for_turn(rank);
      if (alone) break;
    }
    for (const Turn& turn : put_off) {
      turns_.push_back(turn);
      std::ranges::push_heap(turns_, std::greater<>());
    }
    for (const PartDraft& draft : parts) part_of_owner_[draft.owner].reset();
    append_cut(parts);
  }

  /// Streams take a chunk of each part in turn: a large part counts as several of the size of the
  /// smallest one.
  void append_cut(const std::vector<PartDraft>& parts) {
    std::uint64_t largest = 1, smallest = bucket_bytes_;
    for (const PartDraft& part : parts) largest = std::max(largest, part.bytes);
    for (const PartDraft& part : parts) {
      if (part.bytes >= largest / kMostPieces) smallest = std::min(smallest, part.bytes);
    }
    smallest = std::max(smallest, least_part_bytes_);
    for (const PartDraft& part : parts) {
      const std::uint64_t pieces = (part.bytes + smallest / 2) / smallest;
      append_pieces(part, std::max<std::uint64_t>(1, pieces), queues_, drafts_);
    }
  }

  const SourceQueues& queues_;
  const std::uint64_t bucket_bytes_;
  const std::uint64_t least_part_bytes_;
  const std::uint64_t most_owners_;
  std::vector<Owner> owners_;                              ///< by rank
  std::vector<std::optional<std::size_t>> part_of_owner_;  ///< in the bucket that is dealt
  std::vector<Turn> turns_;  ///< a heap of the owners that have units left, the next one on top
  std::vector<PartDraft> drafts_;
};

}  // namespace

std::vector<PartDraft> draft_buckets(const SourceQueues& queues, std::span<const PlanRank> ranks,
                                     const PlanOptions& options) {
  if (links_differ(queues, ranks)) {
    return ProportionalDealer(queues, ranks, options.bucket_bytes, options.cross_chunk_bytes)
        .deal();
  }
  return EvenDealer(queues, ranks, options.bucket_bytes, options.chunk_bytes).deal();
}

}  // namespace ckpt
