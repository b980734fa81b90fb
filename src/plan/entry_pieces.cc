#include "plan/entry_pieces.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/weights.h"

namespace ckpt {
namespace {

/// For each host with recipients the number of its known devices among them, 1 at least.
std::map<int, std::uint64_t> entry_devices(std::span<const PlanRank> ranks) {
  std::map<int, std::set<int>> devices;
  for (const PlanRank& rank : ranks) {
    if (!rank.recipient) continue;
    std::set<int>& known = devices[rank.host];
    if (rank.device >= 0) known.insert(rank.device);
  }
  std::map<int, std::uint64_t> counts;
  for (const auto& [host, known] : devices) {
    counts[host] = std::max<std::uint64_t>(1, known.size());
  }
  return counts;
}

}  // namespace

std::vector<PartDraft> cut_for_entries(std::vector<PartDraft> drafts, const SourceQueues& queues,
                                       std::span<const PlanRank> ranks, std::uint64_t least_bytes) {
  const std::map<int, std::uint64_t> devices = entry_devices(ranks);
  if (std::ranges::all_of(devices, [](const auto& host) { return host.second == 1; })) {
    return drafts;
  }
  std::vector<PartDraft> pieces;
  pieces.reserve(drafts.size());
  for (const PartDraft& part : drafts) {
    std::uint64_t count = 1;
    for (const auto& [host, known] : devices) {
      if (host != ranks[part.owner].host) count = std::max(count, known);
    }
    append_pieces(part, std::min(count, std::max<std::uint64_t>(1, part.bytes / least_bytes)),
                  queues, pieces);
  }
  return pieces;
}

}  // namespace ckpt
