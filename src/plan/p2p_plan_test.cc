// P2P plans against the time that no plan can beat, on random topologies.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

#include "base/strings.h"
#include "plan/plan.h"
#include "plan/schedule_simulation.h"
#include "plan/source_quotas.h"
#include "plan/test_topology.h"
#include "plan/weights.h"

namespace ckpt::testing {
namespace {

/// Bytes through each network device of a topology, in both directions, in seconds of a device of
/// speed 1.
class DeviceTimes {
 public:
  explicit DeviceTimes(const std::vector<PlanRank>& ranks)
      : ranks_(ranks),
        numbers_(device_numbers(ranks)),
        in_(ranks.size(), 0),
        out_(ranks.size(), 0) {}

  void receive(int rank, std::uint64_t bytes) { add(in_, rank, bytes); }
  void give(int rank, std::uint64_t bytes) { add(out_, rank, bytes); }
  double busiest() const {
    return std::max(*std::ranges::max_element(in_), *std::ranges::max_element(out_));
  }

 private:
  void add(std::vector<double>& seconds, int rank, std::uint64_t bytes) const {
    const auto r = static_cast<std::size_t>(rank);
    seconds[numbers_[r]] += static_cast<double>(bytes) / ranks_[r].bandwidth;
  }

  const std::vector<PlanRank>& ranks_;
  const std::vector<std::uint32_t> numbers_;
  std::vector<double> in_, out_;
};

/// Calls give(rank) and receive(rank) for everybody whom a part goes through.
template <typename Give, typename Receive>
void follow(const Plan& plan, const Part& part, Give give, Receive receive) {
  int from = part.owner;
  for (const Stop& stop : plan.stops_of(part)) {
    give(from);
    receive(stop.rank);
    from = stop.rank;
  }
}

double time_of(const Topology& topology, const Plan& plan) {
  DeviceTimes times(topology.ranks);
  for (const Part& part : plan.parts) {
    follow(
        plan, part, [&](int rank) { times.give(rank, part.bytes); },
        [&](int rank) { times.receive(rank, part.bytes); });
  }
  return times.busiest();
}

/// The time when a bucket waits for its place in the ring, which is free when the buckets that lie
/// in it have arrived: what a link that waits for others costs.
double time_in_order(const Topology& topology, const Plan& plan) {
  const std::vector<std::uint32_t> numbers = device_numbers(topology.ranks);
  std::vector<double> in_until(topology.ranks.size(), 0), out_until(topology.ranks.size(), 0);
  std::vector<double> arrived;
  for (const Bucket& bucket : plan.buckets) {
    const double free =
        bucket.reuse_after < 0 ? 0 : arrived[static_cast<std::size_t>(bucket.reuse_after)];
    double end = arrived.empty() ? 0 : arrived.back();
    for (const Part& part : plan.parts_of(bucket)) {
      const auto carry = [&](std::vector<double>& until, int rank) {
        const auto r = static_cast<std::size_t>(rank);
        double& busy = until[numbers[r]];
        busy = std::max(busy, free) + static_cast<double>(part.bytes) / topology.ranks[r].bandwidth;
        end = std::max(end, busy);
      };
      follow(
          plan, part, [&](int rank) { carry(out_until, rank); },
          [&](int rank) { carry(in_until, rank); });
    }
    arrived.push_back(end);
  }
  return arrived.empty() ? 0 : arrived.back();
}

/// What no plan can beat: everything enters each receiving host through its devices, and what only
/// some devices hold leaves through them, for every set of devices (there are few).
double lower_bound(const Topology& topology) {
  const std::vector<std::uint32_t> numbers = device_numbers(topology.ranks);
  std::map<int, std::map<std::uint32_t, double>> entries;  // by host
  std::map<std::uint32_t, double> sources;
  for (std::size_t rank = 0; rank < topology.ranks.size(); ++rank) {
    const PlanRank& r = topology.ranks[rank];
    (r.recipient ? entries[r.host] : sources)[numbers[rank]] = r.bandwidth;
  }
  double bound = 0;
  for (const auto& [host, devices] : entries) {
    double bandwidth = 0;
    for (const auto& [device, of_device] : devices) bandwidth += of_device;
    bound = std::max(bound, static_cast<double>(topology.catalog.total_bytes()) / bandwidth);
  }

  std::map<std::uint32_t, unsigned> bit;
  std::vector<double> bandwidths;
  for (const auto& [device, bandwidth] : sources) {
    bit[device] = 1u << bandwidths.size();
    bandwidths.push_back(bandwidth);
  }
  std::map<unsigned, double> bytes;  // by the set of devices that hold them
  for (const CatalogTensor& tensor : topology.catalog.tensors()) {
    unsigned set = 0;
    for (const Replica& replica : topology.catalog.replicas(tensor)) {
      set |= bit.at(numbers[static_cast<std::size_t>(replica.rank)]);
    }
    bytes[set] += static_cast<double>(tensor.info->bytes);
  }
  for (unsigned set = 1; set < 1u << bandwidths.size(); ++set) {
    double inside = 0, bandwidth = 0;
    for (const auto& [holders, count] : bytes) {
      if ((holders & ~set) == 0) inside += count;
    }
    for (std::size_t i = 0; i < bandwidths.size(); ++i) {
      if ((set >> i & 1) != 0) bandwidth += bandwidths[i];
    }
    bound = std::max(bound, inside / bandwidth);
  }
  return bound;
}

/// The smallest rank of each network device of a host enters, and owners give, in turn, to each
/// host what it needs.
double time_of_the_simple_rule(const Topology& topology, const Plan& plan) {
  const std::vector<std::uint32_t> numbers = device_numbers(topology.ranks);
  std::map<int, std::map<std::uint32_t, int>> entries;  // by host
  for (std::size_t rank = topology.ranks.size(); rank-- > 0;) {
    const PlanRank& r = topology.ranks[rank];
    if (r.recipient) entries[r.host][numbers[rank]] = static_cast<int>(rank);
  }
  DeviceTimes times(topology.ranks);
  std::size_t turn = 0;
  for (const Bucket& bucket : plan.buckets) {
    for (const BucketTensor& tensor : plan.tensors_of(bucket)) {
      const CatalogTensor& known = topology.catalog.tensors()[tensor.tensor];
      const auto replicas = topology.catalog.replicas(known);
      for (const auto& [host, devices] : entries) {
        const auto entry = std::next(devices.begin(), static_cast<int>(turn % devices.size()));
        times.give(replicas[turn % replicas.size()].rank, padded(known.info->bytes));
        times.receive(entry->second, padded(known.info->bytes));
      }
    }
    ++turn;
  }
  return times.busiest();
}

// Sanitizers see every path in a few topologies, at ten to twenty times the cost of each.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kTopologies = 20, kSimulated = 1;
#else
constexpr std::uint64_t kTopologies = 300, kSimulated = 3;
#endif

class P2pPlanOfHosts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, P2pPlanOfHosts, ::testing::Values(1, 2, 4),
                         [](const auto& hosts) { return concat(hosts.param, "_receiving"); });

TEST_P(P2pPlanOfHosts, IsWithinEightPercentOfTheBoundAndNeverWorseThanTheSimpleRule) {
  const std::uint64_t count = GetParam() == 1 ? kTopologies : kTopologies / 6;
  double worst = 0, sum = 0, simple_sum = 0, worst_in_order = 0, sum_in_order = 0;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const Topology topology = random_p2p_topology(seed, GetParam());
    const auto plan = topology.plan();
    ASSERT_TRUE(plan.is_ok()) << topology.text << ": " << plan.status().to_string();
    const double time = time_of(topology, *plan), bound = lower_bound(topology);
    const double simple = time_of_the_simple_rule(topology, *plan);
    EXPECT_LE(time, 1.08 * bound) << topology.text;
    EXPECT_LE(time, simple) << topology.text;
    // Groups of half a bucket leave little to choose; most topologies have smaller ones.
    const double in_order = time_in_order(topology, *plan);
    EXPECT_LE(in_order, 1.40 * bound) << topology.text;
    worst = std::max(worst, time / bound);
    worst_in_order = std::max(worst_in_order, in_order / bound);
    sum += time / bound;
    sum_in_order += in_order / bound;
    simple_sum += simple / bound;
  }
  const auto topologies = static_cast<double>(count);
  EXPECT_LE(sum_in_order / topologies, 1.04) << "links wait for each other";
  RecordProperty("worst", concat(worst));
  RecordProperty("worst_in_order", concat(worst_in_order));
  RecordProperty("mean_in_order", concat(sum_in_order / topologies));
  RecordProperty("mean", concat(sum / topologies));
  RecordProperty("mean_of_the_simple_rule", concat(simple_sum / topologies));
}

TEST(P2pPlan, AnOwnerBehindASlowLinkGivesInProportionToEveryBucket) {
  // Both hold everything; the first one is twice as fast.
  std::vector<std::vector<TestTensor>> held(3);
  for (int i = 0; i < 384; ++i) held[1].push_back({concat("t", i), 4096});
  held[2] = held[1];
  const Catalog catalog = make_catalog(held);
  const std::vector<PlanRank> ranks = {{0, true, 1000}, {1, false, 500}, {2, false, 250}};
  PlanOptions options;
  options.chunk_bytes = options.cross_chunk_bytes = 4096;
  options.bucket_bytes = 24 * 4096;
  options.ring_bytes = 2 * options.bucket_bytes;
  const auto plan = make_plan(catalog, ranks, options);
  ASSERT_TRUE(plan.is_ok());
  EXPECT_EQ(plan->buckets.size(), 16u);
  for (const Bucket& bucket : plan->buckets) {
    std::map<int, std::uint64_t> given;
    for (const Part& part : plan->parts_of(bucket)) given[part.owner] += part.bytes;
    EXPECT_NEAR(static_cast<double>(given[1]) / 4096, 16, 1);
    EXPECT_NEAR(static_cast<double>(given[2]) / 4096, 8, 1);
  }
}

TEST(P2pPlan, EveryByteArrivesAndNothingDeadlocks) {
  for (std::uint64_t seed = 1000; seed < 1000 + kSimulated; ++seed) {
    const Topology topology = random_p2p_topology(seed);
    const auto plan = topology.plan();
    ASSERT_TRUE(plan.is_ok()) << topology.text;
    EXPECT_EQ(ScheduleSimulation(topology, *plan, seed).run(), "") << topology.text;
  }
}

TEST(P2pPlan, ABucketUsesAllEntryDevices) {
  std::vector<std::vector<TestTensor>> held(3);
  for (int i = 0; i < 64; ++i) held[2].push_back({concat("t", i), 4096});
  const Catalog catalog = make_catalog(held);
  const std::vector<PlanRank> ranks = {{0, true, 1, 0}, {0, true, 1, 1}, {1, false, 1, 0}};
  PlanOptions options;
  options.chunk_bytes = options.cross_chunk_bytes = 4096;
  options.bucket_bytes = 65536;
  options.ring_bytes = 131072;
  const auto plan = make_plan(catalog, ranks, options);
  ASSERT_TRUE(plan.is_ok());
  for (const Bucket& bucket : plan->buckets) {
    std::map<int, std::uint64_t> entered;
    for (const Part& part : plan->parts_of(bucket)) {
      entered[plan->stops_of(part)[0].rank] += part.bytes;
    }
    EXPECT_EQ(entered[0], 32768u);
    EXPECT_EQ(entered[1], 32768u);
  }
}

TEST(P2pPlan, OddJobsAreAnsweredAtOnce) {
  const Catalog one = make_catalog({{}, {{"t", 100}}});
  PlanOptions options;
  const auto nobody = make_plan(one, std::vector<PlanRank>{{0, false}, {1, false}}, options);
  EXPECT_EQ(nobody.status().code(), StatusCode::kInvalidArgument) << "no local receiver";
  const auto unknown = make_plan(one, std::vector<PlanRank>{{0, true, 1, 0}, {1, false}}, options);
  ASSERT_TRUE(unknown.is_ok()) << "an owner of whose device nothing is known";
  EXPECT_EQ(unknown->parts.size(), 1u);
  const auto empty = make_plan(make_catalog({{}, {}}),
                               std::vector<PlanRank>{{0, true, 1, 0}, {1, false}}, options);
  ASSERT_TRUE(empty.is_ok()) << "an empty owner";
  EXPECT_TRUE(empty->buckets.empty());
}

TEST(ShareOut, OverlappingSetsAreBalanced) {
  // Owner 0 alone has 100; 0 and 1 share 100; 1 and 2, which is twice as fast, share 200.
  const std::vector<SharedBytes> shared = {{{0, 1}, 100}, {{1, 2}, 200}};
  const std::vector<std::uint64_t> loads = {100 * 2, 0, 0}, costs = {2, 2, 1};
  const auto given = share_out(shared, loads, costs);
  std::vector<std::uint64_t> times = loads;
  for (std::size_t c = 0; c < shared.size(); ++c) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < given[c].size(); ++i) {
      sum += given[c][i];
      times[shared[c].owners[i]] += given[c][i] * costs[shared[c].owners[i]];
    }
    EXPECT_EQ(sum, shared[c].steps);
  }
  // 400 steps at a speed of 2 together need 200.
  EXPECT_LE(*std::max_element(times.begin(), times.end()), 202u);
}

}  // namespace
}  // namespace ckpt::testing
