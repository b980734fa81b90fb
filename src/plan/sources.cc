#include "plan/sources.h"

#include <algorithm>
#include <ranges>

#include "plan/weights.h"

namespace ckpt {
namespace {

/// What a source costs: the smallest `tier` is taken, then the smallest load.
struct SourceCost {
  int tier;
  std::uint64_t per_step;  ///< for each kRingAlignment of bytes
};

std::vector<SourceCost> source_costs(std::span<const PlanRank> ranks) {
  std::vector<bool> served(ranks.size(), false);
  for (const PlanRank& rank : ranks) {
    if (rank.recipient) served[rank.host] = true;
  }
  const auto hosts = static_cast<std::uint64_t>(std::ranges::count(served, true));
  const std::vector<std::uint64_t> devices = device_costs(ranks);
  std::vector<SourceCost> costs;
  costs.reserve(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool remote = !served[ranks[r].host];
    if (hosts == 1) {
      costs.push_back({remote ? 2 : ranks[r].recipient ? 0 : 1, devices[r]});
    } else {
      // Bytes from a host with recipients take hosts - 1 hops, from elsewhere one more.
      const std::uint64_t cost = devices[r] * (ranks[r].recipient ? 4 : 5);
      costs.push_back({0, remote ? cost * hosts / (hosts - 1) : cost});
    }
  }
  return costs;
}

class SourceChooser {
 public:
  SourceChooser(const Catalog& catalog, std::span<const PlanRank> ranks, std::uint64_t run_bytes)
      : catalog_(catalog),
        costs_(source_costs(ranks)),
        loads_(ranks.size(), 0),
        chosen_(catalog.tensors().size(), 0) {
    std::uint64_t shared = 0;
    const std::span<const CatalogTensor> tensors = catalog.tensors();
    for (const CatalogTensor& tensor : tensors) {
      if (tensor.replica_count == 1) {
        add_load(catalog.replicas(tensor)[0].rank, padded(tensor.info->bytes));
      } else {
        shared += tensor.info->bytes;
      }
    }
    run_bytes_ = std::min(run_bytes, shared / (16 * ranks.size()));
  }

  /// For each tensor of the catalog the number of its chosen replica.
  std::vector<std::uint32_t> choose() && {
    const std::span<const CatalogTensor> tensors = catalog_.tensors();
    for (std::size_t begin = 0, end; begin < tensors.size(); begin = end) {
      end = begin + 1;
      if (tensors[begin].replica_count == 1) continue;
      std::uint64_t bytes = padded(tensors[begin].info->bytes);
      for (; end < tensors.size() && same_sources(tensors[begin], tensors[end]); ++end) {
        bytes += padded(tensors[end].info->bytes);
      }
      const std::uint32_t replica = choose_replica(tensors[begin], bytes);
      std::fill(chosen_.begin() + begin, chosen_.begin() + end, replica);
    }
    return std::move(chosen_);
  }

 private:
  void add_load(int rank, std::uint64_t bytes) {
    loads_[rank] += bytes / kRingAlignment * costs_[rank].per_step;
  }

  /// A group is not torn apart where all of it is there several times.
  bool same_sources(const CatalogTensor& a, const CatalogTensor& b) const {
    return a.group == b.group && std::ranges::equal(catalog_.replicas(a), catalog_.replicas(b), {},
                                                    &Replica::rank, &Replica::rank);
  }

  std::uint32_t choose_replica(const CatalogTensor& tensor, std::uint64_t bytes) {
    const std::span<const Replica> replicas = catalog_.replicas(tensor);
    const auto cost = [&](const Replica& replica) {
      const SourceCost& source = costs_[replica.rank];
      const std::uint64_t steps = bytes / kRingAlignment;
      return std::pair(source.tier, loads_[replica.rank] + steps * source.per_step);
    };
    auto best = std::ranges::min_element(replicas, {}, cost);
    const auto last = std::ranges::find(replicas, last_, &Replica::rank);
    if (last != replicas.end() && cost(*last).first == cost(*best).first) {
      const std::uint64_t ahead = run_bytes_ / kRingAlignment * costs_[last_].per_step;
      if (cost(*last).second <= cost(*best).second + ahead) best = last;
    }
    last_ = best->rank;
    add_load(best->rank, bytes);
    return static_cast<std::uint32_t>(best - replicas.begin());
  }

  const Catalog& catalog_;
  const std::vector<SourceCost> costs_;
  std::vector<std::uint64_t> loads_;
  std::vector<std::uint32_t> chosen_;
  std::uint64_t run_bytes_;
  int last_ = -1;
};

/// Cuts the queue of one owner, from tensor `begin` to the end of the list, into units.
void append_units(SourceQueues& queues, std::span<const CatalogTensor> tensors, std::uint32_t begin,
                  std::uint64_t bucket_bytes) {
  const std::size_t first_unit = queues.units.size();
  const auto append = [&](std::uint32_t first, std::uint32_t count, std::uint64_t bytes) {
    Unit* last = queues.units.size() > first_unit ? &queues.units.back() : nullptr;
    if (last && (bytes == 0 || last->bytes == 0)) {
      last->count += count;
      last->bytes += bytes;
    } else {
      queues.units.push_back({first, count, bytes});
    }
  };
  const std::vector<QueuedTensor>& queue = queues.tensors;
  const auto end = static_cast<std::uint32_t>(queue.size());
  for (std::uint32_t first = begin, last; first < end; first = last) {
    const std::uint64_t group = tensors[queue[first].tensor].group;
    std::uint64_t bytes = 0;
    for (last = first; last < end && tensors[queue[last].tensor].group == group; ++last) {
      bytes += padded(queue[last].bytes);
    }
    if (bytes <= bucket_bytes) {
      append(first, last - first, bytes);
    } else {
      for (std::uint32_t i = first; i < last; ++i) append(i, 1, padded(queue[i].bytes));
    }
  }
}

}  // namespace

SourceQueues queue_sources(const Catalog& catalog, std::span<const PlanRank> ranks,
                           std::uint64_t run_bytes, std::uint64_t bucket_bytes) {
  const std::vector<std::uint32_t> chosen = SourceChooser(catalog, ranks, run_bytes).choose();
  const std::span<const CatalogTensor> tensors = catalog.tensors();
  SourceQueues queues;
  queues.tensors.reserve(tensors.size());
  queues.units.reserve(tensors.size());
  queues.first_unit.reserve(ranks.size() + 1);
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    queues.first_unit.push_back(static_cast<std::uint32_t>(queues.units.size()));
    if (rank >= catalog.world_size()) continue;
    const auto begin = static_cast<std::uint32_t>(queues.tensors.size());
    for (const std::uint32_t index : catalog.tensors_of(rank)) {
      const CatalogTensor& tensor = tensors[index];
      const Replica& source = catalog.replicas(tensor)[chosen[index]];
      if (source.rank != rank) continue;
      queues.tensors.push_back({index, tensor.info->bytes, source.offset});
    }
    append_units(queues, tensors, begin, bucket_bytes);
  }
  queues.first_unit.push_back(static_cast<std::uint32_t>(queues.units.size()));
  return queues;
}

}  // namespace ckpt
