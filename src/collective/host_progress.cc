#include "collective/host_progress.h"

#include <algorithm>
#include <set>

#include "base/strings.h"

namespace ckpt {

HostProgressLayout::HostProgressLayout(std::vector<int> local_ranks, std::vector<Link> links)
    : local_ranks_(std::move(local_ranks)), links_(std::move(links)) {}

// Slots: per rank 4 (fill, receive, acknowledged, pulled_total), per ordered pair of local ranks 2,
// per link 1.
Progress::Slot HostProgressLayout::slots() const {
  const auto n = static_cast<Progress::Slot>(local_ranks_.size());
  return 4 * n + 2 * n * n + static_cast<Progress::Slot>(links_.size());
}

Progress::Slot HostProgressLayout::index_of(int rank) const {
  const auto at = std::lower_bound(local_ranks_.begin(), local_ranks_.end(), rank);
  return static_cast<Progress::Slot>(at - local_ranks_.begin());
}

Progress::Slot HostProgressLayout::stream(int rank, StreamKind kind) const {
  return 4 * index_of(rank) + (kind == StreamKind::kReceive ? 1 : 0);
}

Progress::Slot HostProgressLayout::acknowledged(int rank) const { return 4 * index_of(rank) + 2; }

Progress::Slot HostProgressLayout::pulled_total(int rank) const { return 4 * index_of(rank) + 3; }

Progress::Slot HostProgressLayout::pulled(int rank, int source, StreamKind kind) const {
  const auto n = static_cast<Progress::Slot>(local_ranks_.size());
  return 4 * n + 2 * (index_of(rank) * n + index_of(source)) +
         (kind == StreamKind::kReceive ? 1 : 0);
}

Progress::Slot HostProgressLayout::forwarded(Link link) const {
  const auto n = static_cast<Progress::Slot>(local_ranks_.size());
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

Status RingSpace::wait(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) const {
  const std::int32_t before = plan_.buckets[bucket].reuse_after;
  if (before < 0) return Status();
  const std::uint64_t done = static_cast<std::uint64_t>(before) + 1;
  for (const int reader : readers_) {
    const Status status = progress_.wait(layout_.acknowledged(reader), done, deadline, abort);
    if (status.code() == StatusCode::kDeadlineExceeded) {
      return deadline_exceeded(concat("the worker of rank ", reader, " has loaded ",
                                      progress_.value(layout_.acknowledged(reader)), " of ",
                                      plan_.buckets.size(), " buckets; the ring stays full"));
    }
    CKPT_RETURN_IF_ERROR(status);
  }
  for (const LinkNeed& need : schedule_.buckets[static_cast<std::size_t>(before)].forwarded) {
    const Status status =
        progress_.wait(layout_.forwarded({need.from, need.to}), need.chunks, deadline, abort);
    if (status.code() == StatusCode::kDeadlineExceeded) {
      return deadline_exceeded(concat(
          "rank ", need.to, " has taken ", progress_.value(layout_.forwarded({need.from, need.to})),
          " of ", need.chunks, " chunks from rank ", need.from, "; the ring stays full"));
    }
    CKPT_RETURN_IF_ERROR(status);
  }
  return Status();
}

bool RingSpace::is_free(std::uint32_t bucket) const {
  const std::int32_t before = plan_.buckets[bucket].reuse_after;
  if (before < 0) return true;
  const std::uint64_t done = static_cast<std::uint64_t>(before) + 1;
  const auto loaded = [&](int reader) {
    return progress_.value(layout_.acknowledged(reader)) >= done;
  };
  const auto taken = [&](const LinkNeed& need) {
    return progress_.value(layout_.forwarded({need.from, need.to})) >= need.chunks;
  };
  const auto& links = schedule_.buckets[static_cast<std::size_t>(before)].forwarded;
  return std::all_of(readers_.begin(), readers_.end(), loaded) &&
         std::all_of(links.begin(), links.end(), taken);
}

}  // namespace ckpt
