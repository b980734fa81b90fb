#include "plan/routes.h"

#include <algorithm>

#include "plan/weights.h"

namespace ckpt {

Routes::Routes(std::span<const PlanRank> ranks)
    : ranks_(ranks), entry_of_rank_(ranks.size(), -1), costs_(device_costs(ranks)) {
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[rank].recipient) entries_.push_back({rank, costs_[rank]});
  }
  std::ranges::stable_sort(entries_, {}, [&](const Entry& e) { return ranks[e.rank].host; });
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    const int host = ranks[entries_[i].rank].host;
    if (hosts_.empty() || hosts_.back().host != host) hosts_.push_back({host, i, i});
    hosts_.back().end = i + 1;
    entry_of_rank_[entries_[i].rank] = static_cast<std::int32_t>(i);
  }
  first_host_.resize(ranks.size());
  for (std::size_t host = 0; host < ranks.size(); ++host) {
    const auto at = std::ranges::lower_bound(hosts_, static_cast<int>(host), {}, &Host::host);
    first_host_[host] = static_cast<std::uint32_t>((at - hosts_.begin()) % hosts_.size());
  }
}

void Routes::append(int owner, std::uint64_t bytes, std::vector<Stop>& stops) {
  const std::uint64_t steps = padded(bytes) / kRingAlignment;
  const int home = ranks_[owner].host;
  std::size_t at = first_host_[home];
  for (std::size_t left = hosts_.size(); left > 0; --left) {
    const Host& host = hosts_[at];
    Entry& entry = host.host == home ? enter_locally(host, owner, steps)
                                     : enter_from_outside(host, left == 1, steps);
    stops.push_back({host.host, entry.rank});
    if (++at == hosts_.size()) at = 0;
  }
}

Routes::Entry& Routes::enter_locally(const Host& host, int owner, std::uint64_t steps) {
  const bool goes_on = hosts_.size() > 1;
  if (const std::int32_t own = entry_of_rank_[owner]; own >= 0) {
    Entry& entry = entries_[own];
    entry.local += steps * entry.cost;
    if (goes_on) entry.out += steps * entry.cost;
    return entry;
  }
  Entry* best = nullptr;
  for (std::uint32_t i = host.first; i < host.end; ++i) {
    Entry& entry = entries_[i];
    if (!best || entry.local + steps * entry.cost < best->local + steps * best->cost) best = &entry;
  }
  best->local += steps * best->cost;
  if (goes_on) best->out += steps * best->cost;
  return *best;
}

Routes::Entry& Routes::enter_from_outside(const Host& host, bool last, std::uint64_t steps) {
  // A device carries both directions at once, so the busier one counts of those that grow.
  const auto busy = [&](const Entry& entry) {
    const std::uint64_t time = steps * entry.cost;
    return last ? entry.in + time : std::max(entry.in, entry.out) + time;
  };
  Entry* best = &entries_[host.first];
  std::uint64_t least = busy(*best);
  for (std::uint32_t i = host.first + 1; i < host.end; ++i) {
    if (const std::uint64_t time = busy(entries_[i]); time < least) {
      best = &entries_[i];
      least = time;
    }
  }
  best->in += steps * best->cost;
  if (!last) best->out += steps * best->cost;
  return *best;
}

}  // namespace ckpt
