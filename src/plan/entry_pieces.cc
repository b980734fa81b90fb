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

void append_pieces(const PartDraft& part, std::uint64_t pieces, const SourceQueues& queues,
                   std::vector<PartDraft>& out) {
  const std::uint64_t target = (part.bytes + pieces - 1) / pieces;
  PartDraft piece = part;
  piece.bytes = 0;
  std::uint64_t left = part.bytes;
  for (std::uint32_t i = part.first_tensor; i < part.end_tensor; ++i) {
    const std::uint64_t bytes = padded(queues.tensors[i].bytes);
    // The border nearest to the target; what is left behind it must be worth a piece.
    const bool full = piece.bytes > 0 && piece.bytes + bytes / 2 >= target;
    if (full && left >= target / 2) {
      piece.end_tensor = i;
      out.push_back(piece);
      piece.first_tensor = i;
      piece.bytes = 0;
    }
    piece.bytes += bytes;
    left -= bytes;
  }
  piece.end_tensor = part.end_tensor;
  out.push_back(piece);
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
