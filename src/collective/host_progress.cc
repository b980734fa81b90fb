#include "collective/host_progress.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/strings.h"

namespace ckpt {

HostProgressLayout::HostProgressLayout(std::vector<int> local_ranks, std::vector<Link> links,
                                       std::vector<int> spread_ranks)
    : local_ranks_(std::move(local_ranks)),
      links_(std::move(links)),
      spread_ranks_(spread_ranks.empty() ? local_ranks_ : std::move(spread_ranks)) {}

bool HostProgressLayout::is_local(int rank) const {
  return std::binary_search(local_ranks_.begin(), local_ranks_.end(), rank);
}

// Slots: per rank 4 (fill, receive, acknowledged, pulled_total), per ordered pair of ranks
// 2, per link 1.
Progress::Slot HostProgressLayout::slots() const {
  const auto n = static_cast<Progress::Slot>(spread_ranks_.size());
  return 4 * n + 2 * n * n + static_cast<Progress::Slot>(links_.size());
}

Progress::Slot HostProgressLayout::index_of(int rank) const {
  const auto at = std::lower_bound(spread_ranks_.begin(), spread_ranks_.end(), rank);
  return static_cast<Progress::Slot>(at - spread_ranks_.begin());
}

Progress::Slot HostProgressLayout::stream(int rank, StreamKind kind) const {
  return 4 * index_of(rank) + (kind == StreamKind::kReceive ? 1 : 0);
}

Progress::Slot HostProgressLayout::acknowledged(int rank) const { return 4 * index_of(rank) + 2; }

Progress::Slot HostProgressLayout::pulled_total(int rank) const { return 4 * index_of(rank) + 3; }

Progress::Slot HostProgressLayout::pulled(int rank, int source, StreamKind kind) const {
  const auto n = static_cast<Progress::Slot>(spread_ranks_.size());
  return 4 * n + 2 * (index_of(rank) * n + index_of(source)) +
         (kind == StreamKind::kReceive ? 1 : 0);
}

Progress::Slot HostProgressLayout::forwarded(Link link) const {
  const auto n = static_cast<Progress::Slot>(spread_ranks_.size());
  const auto at = std::lower_bound(links_.begin(), links_.end(), link);
  return 4 * n + 2 * n * n + static_cast<Progress::Slot>(at - links_.begin());
}

std::vector<Link> links_of(const Schedule& schedule) {
  std::set<Link> links;
  for (const BucketSchedule& bucket : schedule.buckets) {
    for (const LinkNeed& need : bucket.forwarded) links.insert({need.from, need.to});
  }
  return {links.begin(), links.end()};
}

RingCredits::RingCredits(const Plan& plan, const Schedule& schedule,
                         const HostProgressLayout& layout, const Progress& progress,
                         RingReaders readers)
    : plan_(plan),
      schedule_(schedule),
      layout_(layout),
      progress_(progress),
      readers_(std::move(readers)) {
  std::map<Link, LinkNeeds> links;
  for (std::size_t bucket = 0; bucket < schedule.buckets.size(); ++bucket) {
    for (const LinkNeed& need : schedule.buckets[bucket].forwarded) {
      const Link link{need.from, need.to};
      links.try_emplace(link, LinkNeeds{link, {}})
          .first->second.chunks.emplace_back(static_cast<std::int32_t>(bucket), need.chunks);
    }
  }
  for (auto& [link, needs] : links) links_.push_back(std::move(needs));
}

std::vector<RingCredits::Condition> RingCredits::conditions(std::uint32_t bucket) const {
  std::vector<Condition> conditions;
  const std::int32_t before = plan_.buckets[bucket].reuse_after;
  if (before < 0) return conditions;
  const BucketSchedule& last = schedule_.buckets[static_cast<std::size_t>(before)];
  for (const int rank : readers_.workers) {
    conditions.push_back({layout_.acknowledged(rank), static_cast<std::uint64_t>(before) + 1, rank,
                          " buckets were loaded by the worker of rank "});
  }
  for (const int rank : readers_.pullers) {
    conditions.push_back(
        {layout_.pulled_total(rank), last.pulled, rank, " chunks were pulled by rank "});
  }
  // Of all buckets up to `before`, as several of them may lie in the space: the links of the last
  // one need not be those of the others.
  for (const LinkNeeds& needs : links_) {
    const auto behind =
        std::upper_bound(needs.chunks.begin(), needs.chunks.end(), before,
                         [](std::int32_t upto, const auto& need) { return upto < need.first; });
    if (behind == needs.chunks.begin()) continue;
    conditions.push_back({layout_.forwarded(needs.link), std::prev(behind)->second, needs.link.to,
                          " chunks were taken by rank "});
  }
  return conditions;
}

Status RingCredits::wait(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) const {
  for (const Condition& condition : conditions(bucket)) {
    const Status status = progress_.wait(condition.slot, condition.target, deadline, abort);
    if (status.code() == StatusCode::kDeadlineExceeded) {
      return deadline_exceeded(concat("the ring stays full: only ", progress_.value(condition.slot),
                                      " of ", condition.target, condition.what, condition.late));
    }
    CKPT_RETURN_IF_ERROR(status);
  }
  return Status();
}

bool RingCredits::is_free(std::uint32_t bucket) const {
  const auto all = conditions(bucket);
  return std::all_of(all.begin(), all.end(), [&](const Condition& condition) {
    return progress_.value(condition.slot) >= condition.target;
  });
}

}  // namespace ckpt
