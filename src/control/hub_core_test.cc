// The hub's decisions, without sockets and clocks.
#include "control/hub_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/strings.h"

namespace ckpt::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

/// A hub whose ranks are routes "r0", "r1", ...; what it sends is kept by route.
class FakeJob {
 public:
  explicit FakeJob(int size, HubCore::Options with = options())
      : size_(size), core_(std::move(with)) {
    for (int rank = 0; rank < size; ++rank) join(rank);
    sent_.clear();
  }
  static HubCore::Options options() {
    return {.terms = {},
            .heartbeat_interval = 1s,
            .heartbeat_timeout = 5s,
            .new_session = [n = 0]() mutable { return "session" + std::to_string(n++); }};
  }

  void join(int rank, std::uint64_t patience_ms = 10000) {
    Join message;
    message.rank = rank;
    message.world_size = size_;
    message.host_id = rank < 2 ? "h0" : "h1";
    message.patience_ms = patience_ms;
    from(rank, message);
  }
  static Route route(int rank) { return concat("r", rank); }
  void from(int rank, Message message, std::vector<Payload> payloads = {}) {
    core_.receive(route(rank), {std::move(message), std::move(payloads)}, now_);
    collect();
  }
  void pass(std::chrono::milliseconds time) {
    now_ += time;
    core_.tick(now_);
    collect();
  }
  void disconnect(int rank) {
    core_.disconnected(route(rank));
    collect();
  }
  HubCore& core() { return core_; }

  /// All messages of one kind to `rank` since the last call for it.
  template <typename T>
  std::vector<T> take(int rank) {
    std::vector<T> out;
    auto& queue = sent_[route(rank)];
    for (auto it = queue.begin(); it != queue.end();) {
      if (const T* message = std::get_if<T>(&it->message)) {
        out.push_back(*message);
        it = queue.erase(it);
      } else {
        ++it;
      }
    }
    return out;
  }
  /// What was sent to `rank` and not taken, in order.
  std::vector<std::string> kinds(int rank) {
    std::vector<std::string> out;
    for (const Envelope& envelope : sent_[route(rank)]) {
      out.push_back(std::holds_alternative<Lost>(envelope.message)      ? "lost"
                    : std::holds_alternative<Outcome>(envelope.message) ? "outcome"
                                                                        : "other");
    }
    return out;
  }
  Contribute barrier(std::uint64_t request, std::vector<int> ranks, std::uint64_t epoch = 0) {
    return {request, Call::kBarrier, "x", std::move(ranks), epoch, {}};
  }
  std::uint64_t begin(const std::vector<int>& ranks) {
    std::uint64_t epoch = 0;
    for (const int rank : ranks) from(rank, Contribute{1, Call::kBeginUpdate, "u", ranks, 0, {}});
    for (const int rank : ranks) {
      const auto outcomes = take<Outcome>(rank);
      EXPECT_EQ(outcomes.size(), 1U);
      if (!outcomes.empty()) epoch = outcomes[0].number;
    }
    return epoch;
  }

 private:
  void collect() {
    for (Outgoing& out : core_.take_outgoing()) sent_[out.route].push_back(std::move(out.envelope));
  }
  int size_;
  TimePoint now_{};
  HubCore core_;
  std::map<Route, std::vector<Envelope>> sent_;
};

TEST(HubCore, ReadyWhenAllHaveJoined) {
  HubCore core(FakeJob::options());
  Join join;
  join.world_size = 2;
  join.patience_ms = 60000;
  core.receive("a", {join, {}}, {});
  auto out = core.take_outgoing();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Welcome>(out[0].envelope.message));
  join.rank = 1;
  core.receive("b", {join, {}}, {});
  out = core.take_outgoing();
  ASSERT_EQ(out.size(), 3U);
  EXPECT_TRUE(std::holds_alternative<Ready>(out[1].envelope.message));
  EXPECT_TRUE(std::holds_alternative<Ready>(out[2].envelope.message));
  EXPECT_FALSE(core.empty());
}

TEST(HubCore, AnOlderProtocolIsRefusedWithBothNumbers) {
  HubCore core(FakeJob::options());
  Join join;
  join.protocol = 0;
  join.world_size = 1;
  core.receive("a", {join, {}}, {});
  const auto out = core.take_outgoing();
  const auto* refused = std::get_if<Refused>(&out.at(0).envelope.message);
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->cause.code(), StatusCode::kProtocol);
  EXPECT_THAT(refused->cause.message(), HasSubstr("version 0"));
  EXPECT_TRUE(!core.empty()) << "nobody was ever in";
}

TEST(HubCore, PatienceEndsWithTheNamesOfTheMissing) {
  HubCore core(FakeJob::options());
  Join join;
  join.rank = 1;
  join.world_size = 4;
  join.patience_ms = 300;
  core.receive("a", {join, {}}, TimePoint{});
  core.take_outgoing();
  EXPECT_LE(core.next_tick(), TimePoint{} + 300ms);
  core.tick(TimePoint{} + 300ms);
  const auto out = core.take_outgoing();
  ASSERT_FALSE(out.empty());
  const auto* refused = std::get_if<Refused>(&out[0].envelope.message);
  ASSERT_NE(refused, nullptr);
  EXPECT_THAT(refused->cause.message(), HasSubstr("ranks 0, 2, 3 of 4 never joined"));
}

TEST(HubCore, ARankThatComesForTheFirstTimeStartsEverybodysPatienceAnew) {
  HubCore core(FakeJob::options());
  const auto join = [&core](int rank, TimePoint when) {
    Join message;
    message.rank = rank;
    message.world_size = 3;
    message.patience_ms = 300;
    core.receive(FakeJob::route(rank), {message, {}}, when);
  };
  const auto refused = [&core](TimePoint when) {
    core.take_outgoing();
    core.tick(when);
    std::vector<Route> out;
    for (const Outgoing& sent : core.take_outgoing()) {
      if (std::holds_alternative<Refused>(sent.envelope.message)) out.push_back(sent.route);
    }
    return out;
  };
  const TimePoint begin{};
  join(0, begin);
  join(1, begin + 200ms);
  EXPECT_THAT(refused(begin + 499ms), IsEmpty());
  EXPECT_THAT(refused(begin + 500ms), ElementsAre("r0", "r1"));

  // They try again: each has its patience, but none is a newcomer for the other.
  join(0, begin + 600ms);
  join(1, begin + 800ms);
  EXPECT_THAT(refused(begin + 900ms), ElementsAre("r0"));
  EXPECT_THAT(refused(begin + 1100ms), ElementsAre("r1"));
}

TEST(HubCore, SilenceIsALossAndAbortsItsUpdatesOnly) {
  FakeJob job(4);
  const auto with = job.begin({0, 1, 2});
  const auto without = job.begin({0, 1});
  job.from(0, job.barrier(5, {0, 2}));
  job.pass(4s);
  for (const int rank : {0, 1, 3}) job.from(rank, Pulse{});
  job.pass(2s);
  for (const int rank : {0, 1}) {
    const auto aborts = job.take<Abort>(rank);
    ASSERT_EQ(aborts.size(), 1U);
    EXPECT_EQ(aborts[0].epoch, with);
    EXPECT_EQ(aborts[0].cause.rank(), 2);
  }
  EXPECT_EQ(job.take<Lost>(3).size(), 1U);
  const auto outcomes = job.take<Outcome>(0);
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].cause.code(), StatusCode::kPeerLost);
  EXPECT_THAT(outcomes[0].cause.message(), HasSubstr("silent for 5000 ms"));
  job.from(0, job.barrier(6, {0, 1}, without));
  job.from(1, job.barrier(6, {0, 1}, without));
  EXPECT_TRUE(job.take<Outcome>(0).at(0).cause.is_ok());
  // Later calls over it fail at once.
  job.from(0, job.barrier(7, {0, 2}));
  EXPECT_EQ(job.take<Outcome>(0).at(0).cause.rank(), 2);
}

TEST(HubCore, ALossIsHeardOfBeforeWhatEndsByIt) {
  std::vector<std::string> rescued;
  auto options = FakeJob::options();
  options.on_lost = [&](const PeerLost& lost) {
    for (const auto& channel : lost.channels) rescued.push_back(channel.address);
  };
  FakeJob job(2, std::move(options));
  job.from(1, PublishChannel{3, "ipc://@channel"});
  job.from(0, job.barrier(5, {0, 1}));
  job.disconnect(1);
  const auto kinds = job.kinds(0);
  const auto lost = std::find(kinds.begin(), kinds.end(), "lost");
  const auto outcome = std::find(kinds.begin(), kinds.end(), "outcome");
  ASSERT_TRUE(lost != kinds.end() && outcome != kinds.end());
  EXPECT_LT(lost, outcome) << "a process that ends by the outcome must know whom to set free";
  EXPECT_EQ(rescued, std::vector<std::string>{"ipc://@channel"});
}

TEST(HubCore, AHubThatStoodStillExcusesSilence) {
  FakeJob job(2);
  job.core().excuse(60s);
  job.pass(61s);
  EXPECT_TRUE(job.take<Lost>(0).empty());
}

TEST(HubCore, TheFirstAbortWins) {
  FakeJob job(3);
  const auto epoch = job.begin({0, 1, 2});
  job.from(0, job.barrier(9, {0, 1, 2}, epoch));
  job.from(1, Abort{epoch, io_error("first")});
  job.from(2, Abort{epoch, io_error("second")});
  for (const int rank : {0, 1, 2}) {
    const auto aborts = job.take<Abort>(rank);
    ASSERT_EQ(aborts.size(), 1U);
    EXPECT_EQ(aborts[0].cause.to_string(), "rank 1: i/o error: first");
  }
  EXPECT_THAT(job.take<Outcome>(0).at(0).cause.message(), HasSubstr("first"));
  // Who comes late to a call of the update is told the same.
  job.from(2, job.barrier(10, {0, 1, 2}, epoch));
  EXPECT_THAT(job.take<Outcome>(2).at(0).cause.message(), HasSubstr("first"));
  // Not a rank that has ended its part.
  const auto next = job.begin({0, 1});
  job.from(0, EndUpdate{next});
  job.from(1, Abort{next, io_error("third")});
  EXPECT_TRUE(job.take<Abort>(0).empty());
}

TEST(HubCore, StrangersChangeNothing) {
  FakeJob job(2);
  const auto epoch = job.begin({0, 1});
  job.core().receive("stranger", {Abort{epoch, io_error("x")}, {}}, {});
  job.core().receive("stranger", {Attach{"session9"}, {}}, {});
  const auto out = job.core().take_outgoing();
  ASSERT_EQ(out.size(), 2U);
  for (const auto& message : out) {
    EXPECT_EQ(message.route, "stranger");
    EXPECT_TRUE(std::holds_alternative<Refused>(message.envelope.message));
  }
}

TEST(HubCore, LargeAnswersTakeTheSecondConnection) {
  FakeJob job(1);
  job.core().receive("bulk0", {Attach{"session0"}, {}}, {});
  const std::vector<std::byte> large(kMaxControlPayload + 1);
  job.from(0, Put{1, "k"}, {Payload::copy_of(large)});
  EXPECT_EQ(job.take<Outcome>(0).size(), 1U);
  job.core().receive("r0", {Get{2, "k"}, {}}, {});
  const auto out = job.core().take_outgoing();
  ASSERT_EQ(out.size(), 1U);
  EXPECT_EQ(out[0].route, "bulk0");
  // The loss of either connection is the loss of the rank.
  job.core().disconnected("bulk0");
  EXPECT_TRUE(job.core().empty());
}

TEST(HubCore, WhoGivesUpIsNamedAndTheTagLives) {
  FakeJob job(3);
  job.from(0, job.barrier(1, {0, 1, 2}));
  job.from(1, job.barrier(1, {0, 1, 2}));
  job.from(0, Withdraw{1, deadline_exceeded("the deadline passed")});
  EXPECT_THAT(job.take<Outcome>(0).at(0).cause.message(), HasSubstr("rank 2 had not come"));
  EXPECT_THAT(job.take<Outcome>(1).at(0).cause.message(), HasSubstr("when rank 0 gave up"));
  // Rank 0 tries again before rank 2 ever came: a new call, and rank 2's first one belongs to it.
  job.from(0, job.barrier(2, {0, 1, 2}));
  job.from(2, job.barrier(1, {0, 1, 2}));
  job.from(1, job.barrier(2, {0, 1, 2}));
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(job.take<Outcome>(rank).at(0).cause.is_ok());
}

TEST(HubCore, AnyMessageFromAnybodyKeepsItStanding) {
  // Ranks at random say anything at random; every request gets exactly one outcome in the end.
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    FakeJob job(4);
    std::map<int, std::map<std::uint64_t, int>> answers;
    std::uint64_t request = 100;
    std::map<int, std::vector<std::uint64_t>> asked;
    for (int step = 0; step < 60; ++step) {
      const int rank = int(random() % 4);
      std::vector<int> ranks;
      for (int other = 0; other < 5; ++other) {
        if (random() % 2 != 0) ranks.push_back(other);
      }
      const std::string tag(1, char('a' + random() % 2));
      const std::uint64_t epoch = random() % 3;
      ++request;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          asked[rank].push_back(request);
          job.from(rank,
                   Contribute{request, static_cast<Call>(random() % 4), tag, ranks, epoch, {}},
                   {Payload()});
          break;
        case 3:
          asked[rank].push_back(request);
          job.from(rank, Get{request, tag});
          break;
        case 4:
          asked[rank].push_back(request);
          job.from(rank, Put{request, tag});
          break;
        case 5:
          job.from(rank, Abort{epoch, random() % 2 != 0 ? io_error("x") : Status::ok()});
          break;
        case 6:
          job.from(rank, EndUpdate{epoch});
          break;
        default:
          if (!asked[rank].empty()) {
            job.from(rank, Withdraw{asked[rank][random() % asked[rank].size()], aborted("tired")});
          }
      }
    }
    for (int rank = 0; rank < 4; ++rank) {
      for (const std::uint64_t number : asked[rank])
        job.from(rank, Withdraw{number, aborted("end")});
    }
    for (int rank = 0; rank < 4; ++rank) {
      for (const Outcome& outcome : job.take<Outcome>(rank)) ++answers[rank][outcome.request];
      for (const std::uint64_t number : asked[rank]) {
        ASSERT_EQ(answers[rank][number], 1) << "round " << round << " rank " << rank;
      }
    }
    for (int rank = 0; rank < 4; ++rank) job.from(rank, Leave{});
    EXPECT_TRUE(job.core().empty());
  }
}

}  // namespace
}  // namespace ckpt::control
