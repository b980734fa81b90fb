#include "plan/bucket_drafts.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

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

class BucketDealer {
 public:
  BucketDealer(const SourceQueues& queues, std::span<const PlanRank> ranks,
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

}  // namespace

std::vector<PartDraft> draft_buckets(const SourceQueues& queues, std::span<const PlanRank> ranks,
                                     std::uint64_t bucket_bytes, std::uint64_t chunk_bytes) {
  return BucketDealer(queues, ranks, bucket_bytes, chunk_bytes).deal();
}

}  // namespace ckpt
