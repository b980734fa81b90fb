#include "parameter_server/engine_instances.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint_engine/parameter_server.h"

namespace ckpt {
namespace {

TEST(EngineInstances, AreRunsOfRecipients) {
  ::unsetenv("PS_INSTANCE_SIZE");
  EXPECT_EQ(*engine_instances({1, 2, 5, 7}, 2), (std::vector<std::vector<int>>{{1, 2}, {5, 7}}));
  EXPECT_EQ(*engine_instances({1, 2, 5, 7}, 0), (std::vector<std::vector<int>>{{1, 2, 5, 7}}));
  EXPECT_EQ(engine_instances({1, 2, 3}, 2).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_instances({1, 2, 3}, -1).status().code(), StatusCode::kInvalidArgument);
  ::setenv("PS_INSTANCE_SIZE", "1", 1);
  EXPECT_EQ(engine_instances({1, 2}, 0)->size(), 2u);
  EXPECT_EQ(engine_instances({1, 2}, 2)->size(), 1u) << "the argument wins over the variable";
  ::unsetenv("PS_INSTANCE_SIZE");
}

TEST(EngineInstance, IsSpokenToByItsFirstRank) {
  const std::vector<WorkerAddress> all = {{}, {"CPU-0", "a"}, {"CPU-1", "b"},
                                          {}, {"CPU-0", "c"}, {"CPU-1", "d"}};
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(*engine_instance(all, 1, 2), (Map{{"CPU-0", "a"}, {"CPU-1", "b"}}));
  EXPECT_EQ(*engine_instance(all, 4, 2), (Map{{"CPU-0", "c"}, {"CPU-1", "d"}}));
  EXPECT_TRUE(engine_instance(all, 2, 2)->empty());
  EXPECT_TRUE(engine_instance(all, 0, 2)->empty());
  EXPECT_EQ(engine_instance(all, 1, 4).status().code(), StatusCode::kInvalidArgument)
      << "two workers with one key cannot be in one instance";
}

}  // namespace
}  // namespace ckpt
