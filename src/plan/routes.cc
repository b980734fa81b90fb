#include "plan/routes.h"

#include <algorithm>
#include <utility>

#include "plan/weights.h"

namespace ckpt {

Routes::Routes(std::span<const PlanRank> ranks) : ranks_(ranks), entry_of_rank_(ranks.size(), -1) {
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[rank].recipient) entries_.push_back(rank);
  }
  std::ranges::sort(entries_, {}, [&](int rank) { return std::pair(ranks[rank].host, rank); });
  const std::vector<std::uint64_t> costs = device_costs(ranks);
  const std::vector<std::uint32_t> devices = device_numbers(ranks);
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    const int rank = entries_[i], host = ranks[rank].host;
    if (hosts_.empty() || hosts_.back().host != host) hosts_.push_back({host, i, i});
    hosts_.back().end = i + 1;
    entry_of_rank_[rank] = static_cast<std::int32_t>(i);
    costs_.push_back(costs[rank]);
    devices_.push_back(devices[rank]);
  }
  for (Loads* loads : {&local_, &entered_}) loads->resize(entries_.size(), 0);
  for (Loads* loads : {&in_, &out_, &busiest_}) loads->resize(ranks.size(), 0);
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
    const std::uint32_t entry = host.host == home ? enter_locally(host, owner, steps)
                                                  : enter_from_outside(host, left == 1, steps);
    stops.push_back({host.host, entries_[entry]});
    if (++at == hosts_.size()) at = 0;
  }
}

/// An entry of the device of `host` that would be done first with `steps` more on top of its load:
/// the one that has taken least so far.
std::uint32_t Routes::first_done(const Host& host, std::uint64_t steps, const Loads& loads) const {
  const auto key = [&](std::uint32_t i) {
    return std::pair(loads[devices_[i]] + steps * costs_[i], entered_[i]);
  };
  std::uint32_t best = host.first;
  auto least = key(best);
  for (std::uint32_t i = host.first + 1; i < host.end; ++i) {
    const auto time = key(i);
    best = time < least ? i : best;
    least = std::min(time, least);
  }
  return best;
}

std::uint32_t Routes::least_copied(const Host& host) const {
  const auto first = local_.begin() + host.first, end = local_.begin() + host.end;
  return static_cast<std::uint32_t>(std::min_element(first, end) - local_.begin());
}

std::uint32_t Routes::enter_locally(const Host& host, int owner, std::uint64_t steps) {
  const std::int32_t own = entry_of_rank_[owner];
  const std::uint32_t entry = own >= 0 ? static_cast<std::uint32_t>(own) : least_copied(host);
  local_[entry] += steps;
  if (hosts_.size() > 1) send(entry, steps);
  return entry;
}

std::uint32_t Routes::enter_from_outside(const Host& host, bool last, std::uint64_t steps) {
  // Only the loads that grow count: the last stop sends nothing on.
  const std::uint32_t entry = first_done(host, steps, last ? in_ : busiest_);
  entered_[entry] += steps;
  const std::uint32_t device = devices_[entry];
  in_[device] += steps * costs_[entry];
  busiest_[device] = std::max(busiest_[device], in_[device]);
  if (!last) send(entry, steps);
  return entry;
}

void Routes::send(std::uint32_t entry, std::uint64_t steps) {
  const std::uint32_t device = devices_[entry];
  out_[device] += steps * costs_[entry];
  busiest_[device] = std::max(busiest_[device], out_[device]);
}

}  // namespace ckpt
