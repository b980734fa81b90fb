// Every schedule ends, and delivers every bucket with every byte in it, whatever waits for whom.
#include "plan/schedule_simulation.h"

#include <gtest/gtest.h>

#include "base/strings.h"

namespace ckpt {
namespace {

using testing::random_topology;
using testing::ScheduleSimulation;
using testing::Topology;

class EverySchedule : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(EverySchedule, DeliversAllWithoutDeadlock) {
  const Topology topology = random_topology(GetParam());
  const Result<Plan> plan = topology.plan();
  ASSERT_TRUE(plan.is_ok()) << plan.status().to_string();
  for (std::uint64_t run = 0; run < 2; ++run) {
    EXPECT_EQ(ScheduleSimulation(topology, *plan, GetParam() * 16 + run).run(), "")
        << topology.text;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EverySchedule, ::testing::Range<std::uint64_t>(1000, 1400));

}  // namespace
}  // namespace ckpt
