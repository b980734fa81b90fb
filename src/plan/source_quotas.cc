#include "plan/source_quotas.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>

namespace ckpt {
namespace {

/// Maximum flow by shortest augmenting levels (Dinic). Nodes: source, the sets, the owners, sink.
class FlowNetwork {
 public:
  FlowNetwork(std::span<const SharedBytes> shared, std::size_t owners)
      : first_owner_(1 + shared.size()), sink_(first_owner_ + owners), out_(sink_ + 1) {
    for (std::size_t c = 0; c < shared.size(); ++c) {
      add_edge(0, 1 + c, shared[c].steps);
      demand_ += shared[c].steps;
    }
    first_share_ = edges_.size();
    for (std::size_t c = 0; c < shared.size(); ++c) {
      for (const std::uint32_t owner : shared[c].owners) {
        add_edge(1 + c, first_owner_ + owner, shared[c].steps);
      }
    }
    first_sink_ = edges_.size();
    for (std::size_t o = 0; o < owners; ++o) add_edge(first_owner_ + o, sink_, 0);
    capacities_ = edges_;
  }

  /// True when everything gets through although owner o takes at most `most(o)` steps.
  template <typename Most>
  bool lets_all_through(Most most) {
    edges_ = capacities_;
    const std::size_t owners = sink_ - first_owner_;
    for (std::size_t o = 0; o < owners; ++o) edges_[first_sink_ + 2 * o].room = most(o);
    std::uint64_t flow = 0;
    while (flow < demand_ && find_levels()) {
      next_.assign(out_.size(), 0);
      while (const std::uint64_t pushed = push(0, std::numeric_limits<std::uint64_t>::max())) {
        flow += pushed;
      }
    }
    return flow == demand_;
  }

  /// What went through the edges from sets to owners, in the order of the sets and their owners.
  std::uint64_t share(std::size_t number) const {
    return edges_[first_share_ + 2 * number + 1].room;
  }

 private:
  struct Edge {
    std::size_t to;
    std::uint64_t room;
  };

  /// Its reverse is the edge behind it.
  void add_edge(std::size_t from, std::size_t to, std::uint64_t room) {
    out_[from].push_back(edges_.size());
    edges_.push_back({to, room});
    out_[to].push_back(edges_.size());
    edges_.push_back({from, 0});
  }

  bool find_levels() {
    levels_.assign(out_.size(), -1);
    levels_[0] = 0;
    std::deque<std::size_t> reached = {0};
    while (!reached.empty()) {
      const std::size_t node = reached.front();
      reached.pop_front();
      for (const std::size_t e : out_[node]) {
        if (edges_[e].room == 0 || levels_[edges_[e].to] >= 0) continue;
        levels_[edges_[e].to] = levels_[node] + 1;
        reached.push_back(edges_[e].to);
      }
    }
    return levels_[sink_] >= 0;
  }

  /// Depth: at most the number of levels.
  std::uint64_t push(std::size_t node, std::uint64_t most) {
    if (node == sink_) return most;
    for (std::size_t& i = next_[node]; i < out_[node].size(); ++i) {
      Edge& edge = edges_[out_[node][i]];
      if (edge.room == 0 || levels_[edge.to] != levels_[node] + 1) continue;
      const std::uint64_t pushed = push(edge.to, std::min(most, edge.room));
      if (pushed == 0) continue;
      edge.room -= pushed;
      edges_[out_[node][i] ^ 1].room += pushed;
      return pushed;
    }
    return 0;
  }

  const std::size_t first_owner_, sink_;
  std::size_t first_share_ = 0, first_sink_ = 0;
  std::uint64_t demand_ = 0;
  std::vector<Edge> edges_, capacities_;
  std::vector<std::vector<std::size_t>> out_;  ///< edges of each node
  std::vector<int> levels_;
  std::vector<std::size_t> next_;
};

}  // namespace

std::vector<std::vector<std::uint64_t>> share_out(std::span<const SharedBytes> shared,
                                                  std::span<const std::uint64_t> loads,
                                                  std::span<const std::uint64_t> costs) {
  FlowNetwork network(shared, loads.size());
  const auto fits_into = [&](std::uint64_t time) {
    return network.lets_all_through([&](std::size_t owner) {
      return time <= loads[owner] ? 0 : (time - loads[owner]) / costs[owner];
    });
  };
  // All of it through the slowest owner is always possible.
  std::uint64_t too_early = 0, early_enough = 0;
  for (const SharedBytes& set : shared) {
    for (const std::uint32_t owner : set.owners) {
      early_enough = std::max(early_enough, loads[owner]);
    }
  }
  std::uint64_t slowest = 0;
  for (const std::uint64_t cost : costs) slowest = std::max(slowest, cost);
  for (const SharedBytes& set : shared) early_enough += set.steps * slowest;
  // A thousandth is less than what whole tensors cost.
  while (early_enough - too_early > early_enough / 1024 + 1) {
    const std::uint64_t middle = too_early + (early_enough - too_early) / 2;
    (fits_into(middle) ? early_enough : too_early) = middle;
  }
  fits_into(early_enough);
  std::vector<std::vector<std::uint64_t>> shares;
  std::size_t number = 0;
  for (const SharedBytes& set : shared) {
    std::vector<std::uint64_t>& given = shares.emplace_back();
    for (std::size_t i = 0; i < set.owners.size(); ++i) given.push_back(network.share(number++));
  }
  return shares;
}

}  // namespace ckpt
