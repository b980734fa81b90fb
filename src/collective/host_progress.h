// The progress numbers of one pass on one host: which slot belongs to whom.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/progress.h"
#include "plan/schedule.h"

namespace ckpt {

/// An ordered pair of ranks on different hosts: `to` takes chunks out of the ring of `from`.
struct Link {
  int from;
  int to;
  auto operator<=>(const Link&) const = default;
};

/// Who reports what on the board of a host. A pure function of the plan, so that every rank of the
/// host computes the same.
class HostProgressLayout {
 public:
  /// `local_ranks`: the participants of this host, ascending. `links`: those that begin on this
  /// host, sorted. `spread_ranks`: the local ones and those of other hosts whose chunks come here
  /// without a stop (collective/nccl), ascending; empty: the local ones. For a rank of another
  /// host, the rank that it tells writes (nccl/host_credits.h): what it has filled and
  /// acknowledged.
  HostProgressLayout(std::vector<int> local_ranks, std::vector<Link> links,
                     std::vector<int> spread_ranks = {});

  Progress::Slot slots() const;
  const std::vector<int>& local_ranks() const { return local_ranks_; }
  const std::vector<int>& spread_ranks() const { return spread_ranks_; }
  bool is_local(int rank) const;
  const std::vector<Link>& links() const { return links_; }

  /// Chunks done in the stream `kind` of `rank`. Written by that rank's lane.
  Progress::Slot stream(int rank, StreamKind kind) const;
  /// Buckets acknowledged by the worker of `rank`. Written by its deliver lane.
  Progress::Slot acknowledged(int rank) const;
  /// Chunks of the stream `kind` of `source` that `rank` has pulled out of its staging. Written by
  /// the lane of `rank`.
  Progress::Slot pulled(int rank, int source, StreamKind kind) const;
  /// All chunks that `rank` has pulled, in the order of its pull list. Written by the lane of
  /// `rank`.
  Progress::Slot pulled_total(int rank) const;
  /// Chunks that `link.to` has read. Written by the transport thread of `link.from`.
  Progress::Slot forwarded(Link link) const;

 private:
  Progress::Slot index_of(int rank) const;
  std::vector<int> local_ranks_;
  std::vector<Link> links_;
  std::vector<int> spread_ranks_;
};

/// All links that begin on the host of this schedule, sorted.
std::vector<Link> links_of(const Schedule& schedule);

/// Who must be done with a ring before its space is used again.
struct RingReaders {
  std::vector<int> workers;  ///< ranks whose workers load from it
  std::vector<int> pullers;  ///< ranks that pull from it (RingSharing::kPerRank without staging)
};

/// When a bucket's ring space may be written.
class RingCredits {
 public:
  /// All referred objects must outlive it.
  RingCredits(const Plan& plan, const Schedule& schedule, const HostProgressLayout& layout,
              const Progress& progress, RingReaders readers);

  /// Returns when everything that overlaps `bucket` in the ring has been loaded, pulled and
  /// forwarded. An error names who is late.
  Status wait(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) const;
  /// The same question without waiting.
  bool is_free(std::uint32_t bucket) const;

 private:
  /// Something that must be reached, and how to say that it was not.
  struct Condition {
    Progress::Slot slot;
    std::uint64_t target;
    int late;  ///< the rank to blame
    const char* what;
  };
  /// What goes over one link, bucket by bucket.
  struct LinkNeeds {
    Link link;
    std::vector<std::pair<std::int32_t, std::uint64_t>> chunks;  ///< up to a bucket, ascending
  };
  std::vector<Condition> conditions(std::uint32_t bucket) const;

  const Plan& plan_;
  const Schedule& schedule_;
  const HostProgressLayout& layout_;
  const Progress& progress_;
  const RingReaders readers_;
  std::vector<LinkNeeds> links_;
};

}  // namespace ckpt
