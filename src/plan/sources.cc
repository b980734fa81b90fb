#include "plan/sources.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <ranges>
#include <tuple>

#include "plan/source_quotas.h"
#include "plan/weights.h"

namespace ckpt {
namespace {

/// What a source costs: the smallest `tier` is taken, then the smallest load.
struct SourceCost {
  int tier;
  std::uint64_t per_step;  ///< for each kRingAlignment of bytes
  std::uint32_t load;      ///< which load grows: the rank's own, or that of its network device
};

/// More sets of equal owners than this are dealt as they come.
constexpr std::size_t kMostShares = 64;
/// Weights of owners within a set of theirs.
constexpr std::uint64_t kWholeWeight = 1 << 20;

std::vector<SourceCost> source_costs(std::span<const PlanRank> ranks) {
  std::vector<bool> served(ranks.size(), false);
  for (const PlanRank& rank : ranks) {
    if (rank.recipient) served[rank.host] = true;
  }
  const auto hosts = static_cast<std::uint64_t>(std::ranges::count(served, true));
  const std::vector<std::uint64_t> devices = device_costs(ranks);
  const std::vector<std::uint32_t> numbers = device_numbers(ranks);
  std::vector<SourceCost> costs;
  costs.reserve(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const bool remote = !served[ranks[r].host];
    const auto own = static_cast<std::uint32_t>(r);
    const auto shared = static_cast<std::uint32_t>(ranks.size() + numbers[r]);
    if (hosts == 1) {
      costs.push_back({remote ? 2 : ranks[r].recipient ? 0 : 1, devices[r], remote ? shared : own});
    } else {
      // Bytes from a host with recipients take hosts - 1 hops, from elsewhere one more.
      const std::uint64_t cost = devices[r] * (ranks[r].recipient ? 4 : 5);
      costs.push_back({0, remote ? cost * hosts / (hosts - 1) : cost, shared});
    }
  }
  return costs;
}

class SourceChooser {
 public:
  SourceChooser(const Catalog& catalog, std::span<const PlanRank> ranks, std::uint64_t run_bytes)
      : catalog_(catalog),
        costs_(source_costs(ranks)),
        loads_(2 * ranks.size(), 0),
        given_(ranks.size(), 0),
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

  /// For each tensor of the catalog the number of its chosen replica. Dealing to whoever would be
  /// done first is as good as it gets as long as all hold the same; where sets of owners overlap,
  /// sharing out ahead may be better.
  std::vector<std::uint32_t> choose() && {
    const std::vector<std::uint64_t> fixed = loads_, fixed_bytes = given_;
    for_each_run([&](const CatalogTensor& first, std::uint64_t bytes, auto begin, auto end) {
      std::fill(begin, end, choose_replica(first, bytes));
    });
    const std::uint64_t busiest = *std::ranges::max_element(loads_);
    if (!share_out_ahead(fixed)) return std::move(chosen_);
    std::vector<std::uint32_t> as_they_came = chosen_;
    loads_ = fixed;
    given_ = fixed_bytes;
    last_ = -1;
    for_each_run([&](const CatalogTensor& first, std::uint64_t bytes, auto begin, auto end) {
      std::fill(begin, end, choose_by_share(first, bytes));
    });
    const std::uint64_t shared = *std::ranges::max_element(loads_);
    return shared < busiest ? std::move(chosen_) : std::move(as_they_came);
  }

 private:
  /// Owners of equal tensors, and how much of them each is to give.
  struct Share {
    std::vector<std::uint64_t> weights;  ///< by replica; kWholeWeight together, roughly
    std::vector<std::uint64_t> given;    ///< steps
  };

  void add_load(int rank, std::uint64_t bytes) {
    given_[rank] += bytes;
    loads_[costs_[rank].load] += bytes / kRingAlignment * costs_[rank].per_step;
  }

  /// Tensors that are there several times, those of a group together.
  template <typename Body>
  void for_each_run(Body body) {
    const std::span<const CatalogTensor> tensors = catalog_.tensors();
    for (std::size_t begin = 0, end; begin < tensors.size(); begin = end) {
      end = begin + 1;
      if (tensors[begin].replica_count == 1) continue;
      std::uint64_t bytes = padded(tensors[begin].info->bytes);
      for (; end < tensors.size() && same_sources(tensors[begin], tensors[end]); ++end) {
        bytes += padded(tensors[end].info->bytes);
      }
      body(tensors[begin], bytes, chosen_.begin() + static_cast<std::ptrdiff_t>(begin),
           chosen_.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }

  std::vector<int> owners_of(const CatalogTensor& tensor) const {
    std::vector<int> owners;
    for (const Replica& replica : catalog_.replicas(tensor)) owners.push_back(replica.rank);
    return owners;
  }

  /// False where there is nothing to be won: all tensors have the same owners, or there are too
  /// many different sets.
  bool share_out_ahead(const std::vector<std::uint64_t>& fixed) {
    std::map<std::vector<int>, std::uint64_t> sets;
    for_each_run([&](const CatalogTensor& first, std::uint64_t bytes, auto, auto) {
      if (sets.size() <= kMostShares) sets[owners_of(first)] += bytes / kRingAlignment;
    });
    if (sets.size() < 2 || sets.size() > kMostShares) return false;
    std::vector<std::uint64_t> costs(loads_.size(), kUnitCost);
    std::vector<SharedBytes> shared;
    for (const auto& [owners, steps] : sets) {
      SharedBytes& set = shared.emplace_back(SharedBytes{{}, steps});
      for (const int owner : eligible(owners)) {
        costs[costs_[owner].load] = costs_[owner].per_step;
        if (std::ranges::find(set.owners, costs_[owner].load) == set.owners.end()) {
          set.owners.push_back(costs_[owner].load);
        }
      }
    }
    const auto given = share_out(shared, fixed, costs);
    std::size_t number = 0;
    for (const auto& [owners, steps] : sets) {
      Share& share = shares_[owners];
      share.weights.assign(owners.size(), 0);
      share.given.assign(owners.size(), 0);
      for (std::size_t i = 0; i < shared[number].owners.size(); ++i) {
        spread(given[number][i], shared[number].owners[i], steps, owners, share);
      }
      ++number;
    }
    return true;
  }

  /// What a device gives, its ranks give in equal parts.
  void spread(std::uint64_t given, std::uint32_t load, std::uint64_t steps,
              const std::vector<int>& owners, Share& share) const {
    const auto same = [&](int owner) { return costs_[owner].load == load; };
    const auto ranks = static_cast<std::uint64_t>(std::ranges::count_if(owners, same));
    const std::uint64_t weight =
        given * kWholeWeight /
        (std::max<std::uint64_t>(steps, 1) * std::max<std::uint64_t>(ranks, 1));
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (same(owners[i])) share.weights[i] = weight;
    }
  }

  /// Those of the best tier.
  std::vector<int> eligible(const std::vector<int>& owners) const {
    int best = costs_[owners[0]].tier;
    for (const int owner : owners) best = std::min(best, costs_[owner].tier);
    std::vector<int> out;
    for (const int owner : owners) {
      if (costs_[owner].tier == best) out.push_back(owner);
    }
    return out;
  }

  /// The replica that is furthest behind its share; the last one goes on for up to run_bytes_.
  std::uint32_t choose_by_share(const CatalogTensor& tensor, std::uint64_t bytes) {
    const std::span<const Replica> replicas = catalog_.replicas(tensor);
    Share& share = shares_.at(owners_of(tensor));
    const std::uint64_t steps = bytes / kRingAlignment, run = run_bytes_ / kRingAlignment;
    std::size_t best = replicas.size();
    std::uint64_t least = 0;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      if (share.weights[i] == 0) continue;
      std::uint64_t given = share.given[i] + steps;
      if (replicas[i].rank == last_) given -= std::min(given, run);
      const std::uint64_t turn = given * kWholeWeight / share.weights[i];
      if (best == replicas.size() || turn < least) {
        best = i;
        least = turn;
      }
    }
    if (best == replicas.size()) return choose_replica(tensor, bytes);
    share.given[best] += steps;
    last_ = replicas[best].rank;
    add_load(last_, bytes);
    return static_cast<std::uint32_t>(best);
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
      return std::tuple(source.tier, loads_[source.load] + steps * source.per_step,
                        given_[replica.rank]);
    };
    auto best = std::ranges::min_element(replicas, {}, cost);
    const auto last = std::ranges::find(replicas, last_, &Replica::rank);
    if (last != replicas.end() && std::get<0>(cost(*last)) == std::get<0>(cost(*best))) {
      const std::uint64_t ahead = run_bytes_ / kRingAlignment * costs_[last_].per_step;
      if (std::get<1>(cost(*last)) <= std::get<1>(cost(*best)) + ahead) best = last;
    }
    last_ = best->rank;
    add_load(best->rank, bytes);
    return static_cast<std::uint32_t>(best - replicas.begin());
  }

  const Catalog& catalog_;
  const std::vector<SourceCost> costs_;
  std::vector<std::uint64_t> loads_;
  std::vector<std::uint64_t> given_;  ///< bytes, by rank: decides between ranks of one device
  std::vector<std::uint32_t> chosen_;
  std::uint64_t run_bytes_;
  int last_ = -1;
  std::map<std::vector<int>, Share> shares_;  ///< by owners
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
