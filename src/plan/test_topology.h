// Catalogs and topologies for the tests of the planner.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ckpt::testing {

struct TestTensor {
  std::string name;
  std::uint64_t bytes;
};

/// Rank i holds the tensors of element i, in that order, in a pool of its own. They begin at
/// multiples of `pool_step`: kRingAlignment as registration lays them out, 1 as in a file.
Catalog make_catalog(const std::vector<std::vector<TestTensor>>& held,
                     std::uint64_t pool_step = kRingAlignment);

/// `hosts` hosts of `ranks_per_host` ranks, all of them recipients.
std::vector<PlanRank> make_ranks(int hosts, int ranks_per_host);

/// Names of one group for equal numbers.
std::string name_in_group(int group, int member);

/// Everything that make_plan takes.
struct Topology {
  Catalog catalog;
  std::vector<PlanRank> ranks;
  PlanOptions options;
  std::string text;  ///< for failure messages

  Result<Plan> plan() const { return make_plan(catalog, ranks, options); }
};

/// A small random job: 1 to 4 hosts of 1 to 4 ranks, some of them recipients, groups of 1 to 4
/// tensors of 0 bytes to a whole ring, some on several ranks, rings of a few KiB.
Topology random_topology(std::uint64_t seed);

/// A random P2P update: hosts of recipients with several network devices, owners on other hosts
/// with devices of their own, of unequal speeds, tensors of many sizes, some on several owners. At
/// least eight buckets fall on each device of a receiving host.
Topology random_p2p_topology(std::uint64_t seed, int receiving_hosts = 1);

}  // namespace ckpt::testing
