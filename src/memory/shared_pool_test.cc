#include "memory/shared_pool.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

TEST(SharedPool, ServesOneCheckpointAfterTheOther) {
  SharedPool shared;
  EXPECT_EQ(shared.bytes(), 0u);
  HostPool* const first = *shared.take("a", 8 * kMiB);
  *first->pointer(5) = std::byte(1);
  const auto refused = shared.take("b", kMiB);
  EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("\"a\""), std::string::npos);
  shared.give_back("b");  // not its user
  EXPECT_FALSE(shared.take("b", kMiB).is_ok());

  shared.give_back("a");
  HostPool* const second = *shared.take("b", 7 * kMiB);
  EXPECT_EQ(second, first);
  EXPECT_EQ(*second->pointer(5), std::byte(1));
  shared.release();  // in use: stays
  EXPECT_EQ(shared.bytes(), 8 * kMiB);
}

TEST(SharedPool, GrowsByReplacement) {
  SharedPool shared;
  ASSERT_TRUE(shared.take("a", 2 * kMiB).is_ok());
  shared.give_back("a");
  HostPool* const grown = *shared.take("b", 9 * kMiB);
  EXPECT_EQ(grown->anonymous_bytes(), 9 * kMiB);
  shared.give_back("b");
  EXPECT_EQ(shared.take("c", 1ull << 60).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(shared.take("d", kMiB).is_ok());  // a failure leaves it free
  shared.give_back("d");
  shared.release();
  EXPECT_EQ(shared.bytes(), 0u);
}

}  // namespace
}  // namespace ckpt
