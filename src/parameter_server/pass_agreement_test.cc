#include "parameter_server/pass_agreement.h"

#include <gtest/gtest.h>

namespace ckpt {
namespace {

using Clock = PassAgreement::Clock;
constexpr Clock::time_point kStart{};

TEST(PassAgreement, EndsWhenEveryCallHasReturned) {
  PassAgreement agreement({{0, 1}, {2, 3}});
  EXPECT_FALSE(agreement.decide(kStart));
  for (const int rank : {0, 1, 1, 3}) agreement.call_returned(rank);
  EXPECT_FALSE(agreement.decide(kStart));
  agreement.call_returned(2);
  const auto decision = agreement.decide(kStart);
  ASSERT_TRUE(decision);
  EXPECT_TRUE(std::holds_alternative<PassAgreement::End>(*decision));
}

TEST(PassAgreement, AWholeInstanceStartsTheNextPassAtOnce) {
  PassAgreement agreement({{0, 1}, {2, 3}});
  agreement.call_returned(0);
  agreement.reconnected(3, kStart);
  EXPECT_FALSE(agreement.decide(kStart));
  agreement.reconnected(2, kStart);
  const auto decision = agreement.decide(kStart);
  ASSERT_TRUE(decision);
  EXPECT_EQ(std::get<PassAgreement::NextPass>(*decision).recipients, (std::vector<int>{2, 3}));
  EXPECT_FALSE(agreement.decide(kStart)) << "a decision is made once";
}

TEST(PassAgreement, PatienceEndsAfterASecond) {
  PassAgreement agreement({{0, 1, 2}});
  agreement.reconnected(1, kStart);
  EXPECT_EQ(agreement.wake_at(), kStart + PassAgreement::kPatience);
  EXPECT_FALSE(agreement.decide(kStart + std::chrono::milliseconds(999)));
  const auto decision = agreement.decide(kStart + std::chrono::milliseconds(1000));
  ASSERT_TRUE(decision);
  EXPECT_EQ(std::get<PassAgreement::NextPass>(*decision).recipients, std::vector<int>{1});
  EXPECT_FALSE(agreement.wake_at());
}

TEST(PassAgreement, NobodyEndsWhileAWorkerWaits) {
  PassAgreement agreement({{0}, {1}});
  agreement.call_returned(0);
  agreement.reconnected(1, kStart);
  agreement.call_returned(1);
  const auto first = agreement.decide(kStart);
  ASSERT_TRUE(first);
  EXPECT_TRUE(std::holds_alternative<PassAgreement::NextPass>(*first));
  EXPECT_TRUE(std::holds_alternative<PassAgreement::End>(*agreement.decide(kStart)));
}

}  // namespace
}  // namespace ckpt
