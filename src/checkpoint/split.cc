#include "checkpoint/split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "checkpoint/order.h"

namespace ckpt {
namespace {

// Tensors that are dealt together: a run of the plan order.
struct Unit {
  std::uint32_t first;  // position in plan order
  std::uint32_t count;
  std::uint64_t bytes;
};

// By position in plan order: the rank that holds the tensor.
struct Deal {
  std::vector<int> rank_of;
  std::uint64_t largest_share = 0;
};

class RankHeap {
 public:
  struct Entry {
    std::uint64_t bytes;
    std::uint64_t room;  // at least 1: bytes are compared in proportion to it
    int rank;
  };
  void push(const Entry& entry) { heap_.push(entry); }
  /// Gives `bytes` to the rank that is the least full, the lowest of several.
  int deal(std::uint64_t bytes) {
    Entry entry = heap_.top();
    heap_.pop();
    entry.bytes += bytes;
    heap_.push(entry);
    return entry.rank;
  }

 private:
  struct Fuller {
    bool operator()(const Entry& a, const Entry& b) const {
      __extension__ typedef unsigned __int128 Wide;
      const Wide a_fill = Wide{a.bytes} * b.room, b_fill = Wide{b.bytes} * a.room;
      return a_fill != b_fill ? a_fill > b_fill : a.rank > b.rank;
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, Fuller> heap_;
};

// The level to which `bytes` fill the ranks that hold `held` so far, like water.
std::uint64_t water_level(std::vector<std::uint64_t> held, std::uint64_t bytes) {
  std::sort(held.begin(), held.end());
  std::uint64_t below = 0;
  for (std::size_t ranks = 1;; ++ranks) {
    below += held[ranks - 1];
    const std::uint64_t level = (bytes + below) / ranks;
    if (ranks == held.size() || level <= held[ranks]) return level;
  }
}

// What is large beside a share is dealt first, the largest first: at the end of the model (lm_head)
// nothing would be left to even it out. Everything else follows in plan order, to each rank in
// proportion to its room, so that every run of layers uses all of them.
Deal deal_units(const std::vector<Unit>& units, std::size_t tensor_count, int world_size,
                std::uint64_t large_from) {
  Deal deal;
  deal.rank_of.resize(tensor_count);
  std::vector<std::uint64_t> held(world_size, 0);
  const auto give = [&](const Unit& unit, int rank) {
    std::fill_n(deal.rank_of.begin() + unit.first, unit.count, rank);
    held[rank] += unit.bytes;
  };

  std::vector<Unit> large;
  std::uint64_t small_bytes = 0;
  for (const Unit& unit : units) {
    if (unit.bytes >= large_from) {
      large.push_back(unit);
    } else {
      small_bytes += unit.bytes;
    }
  }
  std::sort(large.begin(), large.end(), [](const Unit& a, const Unit& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.first < b.first;
  });
  RankHeap by_bytes;
  for (int rank = 0; rank < world_size; ++rank) by_bytes.push({0, 1, rank});
  for (const Unit& unit : large) give(unit, by_bytes.deal(unit.bytes));

  const std::uint64_t level = water_level(held, small_bytes);
  RankHeap by_fill;
  for (int rank = 0; rank < world_size; ++rank) {
    if (held[rank] <= level) by_fill.push({0, level - held[rank] + 1, rank});
  }
  for (const Unit& unit : units) {
    if (unit.bytes < large_from) give(unit, by_fill.deal(unit.bytes));
  }
  deal.largest_share = *std::max_element(held.begin(), held.end());
  return deal;
}

// Groups of the plan order; those of `cut_from` bytes and more as single tensors.
std::vector<Unit> make_units(const std::vector<TensorInfo>& tensors,
                             const std::vector<std::uint32_t>& order,
                             const std::vector<std::uint64_t>& groups, std::uint64_t cut_from) {
  std::vector<Unit> units;
  for (std::uint32_t first = 0; first < order.size();) {
    Unit unit{first, 0, 0};
    while (first < order.size() && groups[first] == groups[unit.first]) {
      unit.bytes += tensors[order[first++]].bytes;
      ++unit.count;
    }
    if (unit.bytes < cut_from) {
      units.push_back(unit);
      continue;
    }
    for (std::uint32_t at = unit.first; at < first; ++at) {
      units.push_back({at, 1, tensors[order[at]].bytes});
    }
  }
  return units;
}

std::vector<std::vector<std::uint32_t>> shares_of(const Deal& deal,
                                                  const std::vector<std::uint32_t>& order,
                                                  int world_size) {
  std::vector<std::vector<std::uint32_t>> shares(world_size);
  for (std::size_t at = 0; at < order.size(); ++at) {
    shares[deal.rank_of[at]].push_back(order[at]);
  }
  return shares;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> split_by_bytes(const std::vector<TensorInfo>& tensors,
                                                       int world_size) {
  const std::vector<std::uint32_t> order = plan_order(tensors);
  std::vector<std::uint64_t> groups;
  groups.reserve(order.size());
  std::uint64_t total = 0;
  for (const std::uint32_t index : order) {
    groups.push_back(group_id(tensors[index].name));
    total += tensors[index].bytes;
  }
  const std::uint64_t mean = total / static_cast<std::uint64_t>(world_size);
  const std::uint64_t limit = mean + mean / 10;
  const std::uint64_t large = mean / 20 + 1;

  // Cutting groups makes engines wait for the rest of them, so only where it evens out the shares.
  Deal best;
  for (const std::uint64_t cut_from : {limit + 1, large}) {
    const auto units = make_units(tensors, order, groups, cut_from);
    Deal deal = deal_units(units, tensors.size(), world_size, large);
    if (best.rank_of.empty() || deal.largest_share < best.largest_share) best = std::move(deal);
    if (best.largest_share <= limit) break;
  }
  return shares_of(best, order, world_size);
}

std::vector<std::vector<std::uint32_t>> split_by_files(const std::vector<TensorInfo>& tensors,
                                                       const std::vector<std::uint32_t>& file_of,
                                                       int world_size) {
  std::map<std::uint32_t, std::uint64_t> bytes_of;
  for (std::size_t i = 0; i < tensors.size(); ++i) bytes_of[file_of[i]] += tensors[i].bytes;
  RankHeap by_bytes;
  for (int rank = 0; rank < world_size; ++rank) by_bytes.push({0, 1, rank});
  std::map<std::uint32_t, int> rank_of_file;
  for (const auto& [file, bytes] : bytes_of) rank_of_file[file] = by_bytes.deal(bytes);

  const std::vector<std::uint32_t> order = plan_order(tensors);
  Deal deal;
  for (const std::uint32_t index : order) {
    deal.rank_of.push_back(rank_of_file.at(file_of[index]));
  }
  return shares_of(deal, order, world_size);
}

}  // namespace ckpt
