#include "plan/bucket_drafts.h"

#include <algorithm>
#include <functional>
#include <tuple>

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

}  // namespace

BucketDrafts::BucketDrafts(const SourceQueues& queues, std::span<const PlanRank> ranks,
                           std::uint64_t bucket_bytes, std::uint64_t chunk_bytes)
    : queues_(queues),
      bucket_bytes_(bucket_bytes),
      most_parts_(std::max<std::uint64_t>(1, bucket_bytes / chunk_bytes)),
      next_unit_(queues.first_unit.begin(), queues.first_unit.end() - 1),
      owners_(turn_order(queues, ranks)),
      waiting_(owners_.size()) {}

std::span<const PartDraft> BucketDrafts::next() {
  parts_.clear();
  open_.clear();
  room_ = level_ = bucket_bytes_;
  begin_parts();
  fill_parts();
  // Those that took part go to the end of the circle; its free places are before turn_.
  std::size_t end = turn_ + waiting_;
  for (const PartDraft& part : parts_) {
    if (!has_units(part.owner)) continue;
    owners_[end++ % owners_.size()] = part.owner;
    ++waiting_;
  }
  return parts_;
}

/// One unit of each owner whose turn it is. An owner whose unit does not fit is the first one of
/// the next bucket.
void BucketDrafts::begin_parts() {
  const std::uint64_t count = std::min<std::uint64_t>(waiting_, most_parts_);
  while (parts_.size() < count) {
    const int owner = owners_[turn_];
    const Unit& unit = queues_.units[next_unit_[owner]];
    const bool alone = parts_.empty() && unit.bytes > bucket_bytes_;
    if (unit.bytes > room_ && !alone) return;
    parts_.push_back({owner, unit.first, unit.first, 0});
    if (alone) room_ = unit.bytes;
    take_unit(parts_.back());
    turn_ = (turn_ + 1) % owners_.size();
    --waiting_;
    if (alone) return;
  }
}

/// The smallest part grows until its owner's next unit does not fit: then all parts that can grow
/// differ by at most one unit.
void BucketDrafts::fill_parts() {
  for (std::uint32_t i = 0; i < parts_.size(); ++i) offer(i);
  while (!open_.empty()) {
    std::ranges::pop_heap(open_, std::greater<>());
    const std::uint32_t smallest = open_.back().second;
    open_.pop_back();
    PartDraft& part = parts_[smallest];
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
void BucketDrafts::offer(std::uint32_t part) {
  const PartDraft& p = parts_[part];
  if (has_units(p.owner)) {
    open_.emplace_back(p.bytes, part);
    std::ranges::push_heap(open_, std::greater<>());
  } else if (p.bytes >= bucket_bytes_ / parts_.size()) {
    level_ = std::min(level_, p.bytes);
  }
}

bool BucketDrafts::take_unit(PartDraft& part) {
  const Unit& unit = queues_.units[next_unit_[part.owner]];
  if (unit.bytes > room_) return false;
  ++next_unit_[part.owner];
  part.end_tensor = unit.first + unit.count;
  part.bytes += unit.bytes;
  room_ -= unit.bytes;
  return true;
}

}  // namespace ckpt
