#include "collective/nccl/host_credits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "collective/testing/must.h"
#include "transport/testing/fake_network.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;
using testing::must;
using Kind = ProgressSignal::Kind;

TEST(CreditListeners, AreOneOfEachOtherHostAndNotAlwaysTheSame) {
  const std::vector<std::vector<int>> hosts{{0, 1, 5}, {2, 3}, {4}};
  EXPECT_EQ(credit_listeners(hosts, 0), (std::vector<int>{2, 4}));
  EXPECT_EQ(credit_listeners(hosts, 1), (std::vector<int>{3, 4}));
  EXPECT_EQ(credit_listeners(hosts, 5), (std::vector<int>{2, 4}));
  EXPECT_EQ(credit_listeners(hosts, 2), (std::vector<int>{0, 4}));
  EXPECT_EQ(credit_listeners(hosts, 3), (std::vector<int>{1, 4}));
  EXPECT_EQ(credit_listeners(hosts, 4), (std::vector<int>{0, 2}));
  EXPECT_TRUE(credit_listeners({{0, 1}}, 1).empty());
}

TEST(CreditListeners, HearEveryRankOfOtherHostsOnce) {
  std::vector<std::vector<int>> hosts;
  for (int host = 0; host < 4; ++host) {
    std::vector<int>& ranks = hosts.emplace_back();
    for (int i = 0; i <= host; ++i) ranks.push_back(host * 10 + i);
  }
  for (const auto& hearing : hosts) {
    for (const auto& speaking : hosts) {
      if (&hearing == &speaking) continue;
      for (const int rank : speaking) {
        int heard = 0;
        for (const int listener : credit_listeners(hosts, rank)) {
          heard += std::ranges::binary_search(hearing, listener);
        }
        EXPECT_EQ(heard, 1) << "rank " << rank;
      }
    }
  }
}

/// Rank 0 on one host, ranks 1 and 2 on another; rank 0 tells rank 1, and rank 1 tells rank 0.
class HostCreditsTest : public ::testing::Test {
 protected:
  struct Rank {
    Rank(testing::FakeNetwork& network, int its_number, std::vector<int> local)
        : number(its_number),
          layout(std::move(local), {}, {0, 1, 2}),
          progress(must(Progress::create_private(layout.slots()))),
          transport(network.make_transport("rank " + std::to_string(number))),
          signals(*transport) {
      schedule.fill.resize(3);
      schedule.buckets.resize(2);
    }
    std::uint64_t filled(int rank) const {
      return progress.value(layout.stream(rank, StreamKind::kFill));
    }
    std::uint64_t acknowledged(int rank) const { return progress.value(layout.acknowledged(rank)); }
    void tell(const Rank& other, std::uint32_t pass = kPass) {
      credits.reset();
      const std::map<int, std::vector<std::byte>> listeners{
          {other.number, must(other.transport->descriptor())}};
      credits = must(
          HostCredits::create({*transport, signals, schedule, progress, layout, 5, pass, number},
                              listeners, Deadline::after_seconds(30)));
    }
    /// As if `from` had said so.
    void hear(Kind kind, int from, std::uint64_t value, std::uint32_t pass = kPass) {
      transport->deliver_signal("x", "y", encode_progress_signal({kind, 5, pass, from, value}));
    }

    const int number;
    Schedule schedule;
    HostProgressLayout layout;
    Progress progress;
    std::shared_ptr<CallbackTransport> transport;
    ProgressSignals signals;
    std::unique_ptr<HostCredits> credits;
  };

  HostCreditsTest() {
    zero_.tell(one_);
    one_.tell(zero_);
  }
  Status wait(const Rank& rank, Progress::Slot slot, std::uint64_t value) {
    return rank.progress.wait(slot, value, Deadline::after_seconds(30), abort_);
  }

  static constexpr std::uint32_t kPass = 8;
  testing::FakeNetwork network_;
  AbortSignal abort_;
  Rank zero_{network_, 0, {0}};
  Rank one_{network_, 1, {1, 2}};
};

TEST_F(HostCreditsTest, EveryStepOfARankReachesTheOtherHost) {
  std::thread filled(
      [&] { must(zero_.credits->tell_filled(Deadline::after_seconds(30), abort_)); });
  std::thread loaded(
      [&] { must(zero_.credits->tell_acknowledged(Deadline::after_seconds(30), abort_)); });
  for (std::uint64_t step = 1; step <= 3; ++step) {
    zero_.progress.publish(zero_.layout.stream(0, StreamKind::kFill), step);
    EXPECT_TRUE(wait(one_, one_.layout.stream(0, StreamKind::kFill), step).is_ok());
    if (step > 2) break;
    zero_.progress.publish(zero_.layout.acknowledged(0), step);
    EXPECT_TRUE(wait(one_, one_.layout.acknowledged(0), step).is_ok());
  }
  filled.join();
  loaded.join();
  EXPECT_EQ(one_.filled(0), 3u);
  EXPECT_EQ(one_.acknowledged(0), 2u);
  EXPECT_EQ(one_.filled(1), 0u);
}

TEST_F(HostCreditsTest, SignalsThatAreLateOrComeTwiceDoNoHarm) {
  zero_.hear(Kind::kFilled, 1, 2);
  zero_.hear(Kind::kFilled, 1, 1);
  zero_.hear(Kind::kFilled, 1, 2);
  zero_.hear(Kind::kAcknowledged, 2, 2);
  zero_.hear(Kind::kAcknowledged, 2, 1);
  EXPECT_EQ(zero_.filled(1), 2u);
  EXPECT_EQ(zero_.acknowledged(2), 2u);
  // Of a pass before, and after the pass.
  zero_.hear(Kind::kFilled, 1, 3, kPass - 1);
  EXPECT_EQ(zero_.filled(1), 2u);
  zero_.credits.reset();
  zero_.hear(Kind::kFilled, 1, 3);
  EXPECT_EQ(zero_.filled(1), 2u);
}

TEST_F(HostCreditsTest, NobodySpeaksForRanksOfOurOwnHostOrStrangers) {
  one_.hear(Kind::kFilled, 2, 3);
  one_.hear(Kind::kAcknowledged, 1, 3);
  one_.hear(Kind::kFilled, 7, 3);
  one_.hear(Kind::kReceived, 0, 3);
  one_.hear(Kind::kForwarded, 0, 3);
  for (Progress::Slot slot = 0; slot < one_.layout.slots(); ++slot) {
    EXPECT_EQ(one_.progress.value(slot), 0u) << "slot " << slot;
  }
}

TEST_F(HostCreditsTest, AnAbortEndsBothLanes) {
  std::thread aborter([&] { abort_.raise(aborted("enough")); });
  const Deadline far = Deadline::after_seconds(3600);
  EXPECT_THAT(zero_.credits->tell_filled(far, abort_).message(), HasSubstr("enough"));
  EXPECT_THAT(zero_.credits->tell_acknowledged(far, abort_).message(), HasSubstr("enough"));
  aborter.join();
}

TEST_F(HostCreditsTest, TheDeadlineSaysWhatIsMissing) {
  const Status status = zero_.credits->tell_filled(Deadline::after_seconds(0), abort_);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("what rank 0 has filled"));
}

TEST_F(HostCreditsTest, AListenerThatIsLostIsTheReason) {
  network_.die(*one_.transport);
  zero_.progress.publish(zero_.layout.stream(0, StreamKind::kFill), 1);
  // The loss is known some time after the first signal.
  const Deadline patience = Deadline::after_seconds(30);
  Status status;
  do {
    status = zero_.credits->tell_filled(Deadline::after_seconds(0.01), abort_);
  } while (status.code() == StatusCode::kDeadlineExceeded && !patience.expired());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("rank 1"));
}

TEST_F(HostCreditsTest, ARankWithoutATransportIsNamed) {
  const auto made = HostCredits::create({*zero_.transport, zero_.signals, zero_.schedule,
                                         zero_.progress, zero_.layout, 5, kPass + 1, 0},
                                        {{2, {}}}, Deadline::after_seconds(30));
  EXPECT_EQ(made.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(made.status().message(), HasSubstr("rank 2 has no transport"));
}

}  // namespace
}  // namespace ckpt
