#include "control/control_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

#include "control/hub.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

std::vector<std::byte> bytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}
std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A hub and its ranks in one process. Beats are slow enough for a loaded machine: no test here
/// waits for one.
class Job {
 public:
  explicit Job(int size, HubOptions options = {}) {
    options.bind_host = "127.0.0.1";
    auto hub = Hub::start(options);
    EXPECT_TRUE(hub) << hub.status().to_string();
    hub_ = std::move(*hub);
    clients_.resize(static_cast<std::size_t>(size));
    all_.resize(clients_.size());
    std::iota(all_.begin(), all_.end(), 0);
    on_all([this](int rank) {
      auto client = ControlClient::join(options_of(rank), 20s);
      EXPECT_TRUE(client) << client.status().to_string();
      if (client) clients_[static_cast<std::size_t>(rank)] = std::move(*client);
    });
  }

  JoinOptions options_of(int rank) const {
    return {.hub = hub_->address(),
            .rank = rank,
            .world_size = static_cast<int>(all_.size()),
            .job = "test",
            .host_id = rank % 2 == 0 ? "even" : "odd"};
  }
  ControlClient& operator[](int rank) { return *clients_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& all() const { return all_; }
  Hub& hub() { return *hub_; }
  void stop_hub() { hub_.reset(); }
  void drop(int rank) { clients_[static_cast<std::size_t>(rank)].reset(); }
  std::unique_ptr<ControlClient>& slot(int rank) {
    return clients_[static_cast<std::size_t>(rank)];
  }

  /// Runs `body(rank)` for each rank in a thread of its own.
  void on(const std::vector<int>& ranks, const std::function<void(int)>& body) {
    std::vector<std::jthread> threads;
    for (const int rank : ranks) threads.emplace_back([&body, rank] { body(rank); });
  }
  void on_all(const std::function<void(int)>& body) { on(all_, body); }

  std::uint64_t begin(const std::vector<int>& ranks) {
    std::atomic<std::uint64_t> epoch{0};
    on(ranks, [&](int rank) {
      auto number = (*this)[rank].begin_update("update", ranks, soon());
      EXPECT_TRUE(number) << number.status().to_string();
      if (number) epoch = *number;
    });
    return epoch;
  }

 private:
  std::unique_ptr<Hub> hub_;
  std::vector<int> all_;
  std::vector<std::unique_ptr<ControlClient>> clients_;
};

TEST(ControlClient, GathersInTheOrderOfTheCall) {
  Job job(4);
  const std::vector<int> order = {2, 0, 3, 1};
  for (int round = 0; round < 20; ++round) {
    job.on_all([&](int rank) {
      const auto all =
          job[rank].all_gather("metas", order, bytes(std::string(1, char('a' + rank))), soon());
      ASSERT_TRUE(all) << all.status().to_string();
      ASSERT_EQ(all->size(), 4U);
      EXPECT_EQ(text((*all)[0]) + text((*all)[1]) + text((*all)[2]) + text((*all)[3]), "cadb");
    });
  }
}

TEST(ControlClient, SubsetsWorkAtTheSameTime) {
  Job job(4);
  const std::vector<int> even = {0, 2}, odd = {1, 3};
  job.on_all([&](int rank) {
    const auto& mine = rank % 2 == 0 ? even : odd;
    const std::string tag = rank % 2 == 0 ? "even" : "odd";
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(job[rank].barrier(tag, mine, soon()).is_ok());
  });
}

TEST(ControlClient, AVoteTellsTheFirstErrorWithItsRank) {
  Job job(3);
  job.on_all([&](int rank) {
    EXPECT_TRUE(job[rank].vote("loaded", job.all(), Status::ok(), soon()).is_ok());
  });
  job.on_all([&](int rank) {
    const Status mine = rank == 1 ? data_loss("tensor a differs") : Status::ok();
    const Status all = job[rank].vote("loaded", job.all(), mine, soon());
    EXPECT_EQ(all.to_string(), "rank 1: data loss: tensor a differs");
  });
}

TEST(ControlClient, LargeValuesPassWhole) {
  Job job(2);
  std::vector<std::byte> large(48 << 20);
  for (std::size_t i = 0; i < large.size(); i += 4096) large[i] = std::byte(i >> 12);
  std::jthread reader([&] {
    const auto value = job[1].get("layout", soon());
    ASSERT_TRUE(value) << value.status().to_string();
    EXPECT_TRUE(*value == large);
  });
  ASSERT_FALSE(job[0].contains("layout", soon()).value());
  ASSERT_TRUE(job[0].put("layout", large, soon()).is_ok());
  EXPECT_TRUE(job[1].contains("layout", soon()).value());
  reader.join();
  EXPECT_TRUE(job[1].erase("layout", soon()).is_ok());
  EXPECT_FALSE(job[0].contains("layout", soon()).value());
  const auto gone = job[0].get("layout", Deadline::after(20ms));
  EXPECT_EQ(gone.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(gone.status().message(), HasSubstr("layout"));
}

TEST(ControlClient, ADeadlineNamesTheMissingAndFreesTheOthers) {
  Job job(3);
  std::jthread other([&] {
    const Status status = job[1].barrier("filled", job.all(), soon());
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 had not come when rank 0 gave up"));
  });
  const Status status = job[0].barrier("filled", job.all(), Deadline::after(300ms));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("2 had not come"));
  other.join();
  // The one that comes late is told too, and then the tag works again.
  EXPECT_THAT(job[2].barrier("filled", job.all(), soon()).message(), HasSubstr("gave up"));
  job.on_all(
      [&](int rank) { EXPECT_TRUE(job[rank].barrier("filled", job.all(), soon()).is_ok()); });
}

TEST(ControlClient, DifferentRankSetsFailEverybody) {
  Job job(3);
  const std::vector<int> two = {0, 1};
  job.on_all([&](int rank) {
    const Status status = job[rank].barrier("x", rank == 1 ? two : job.all(), soon());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("ranks 0, 1, 2"));
  });
  EXPECT_THAT(job[2].barrier("x", two, soon()).message(), HasSubstr("without being one of them"));
}

TEST(ControlClient, AnAbortReachesEightWaitingRanks) {
  Job job(8);
  const std::uint64_t epoch = job.begin(job.all());
  std::atomic<int> raised{0};
  job.on_all([&](int rank) {
    auto signal = std::make_shared<AbortSignal>();
    job[rank].watch(epoch, signal);
    if (rank == 7) job[rank].abort(epoch, data_loss("tensor b differs"));
    const Status status = job[rank].barrier("filled", job.all(), soon(), signal.get(), epoch);
    if (rank == 7) {
      // It may come before the barrier or after.
      EXPECT_FALSE(status.is_ok());
    }
    EXPECT_EQ(status.to_string(), "rank 7: data loss: tensor b differs");
    if (wait_readable(signal->fd(), soon()).value()) ++raised;
    EXPECT_EQ(signal->cause().to_string(), "rank 7: data loss: tensor b differs");
    // Remembered for who watches late; forgotten with the update.
    auto other = std::make_shared<AbortSignal>();
    job[rank].watch(epoch, other);
    EXPECT_TRUE(other->raised());
    job[rank].end_update(epoch);
  });
  EXPECT_EQ(raised, 8);
  const std::uint64_t next = job.begin(job.all());
  EXPECT_GT(next, epoch);
  job.on_all([&](int rank) {
    auto signal = std::make_shared<AbortSignal>();
    job[rank].watch(next, signal);
    EXPECT_TRUE(job[rank].barrier("filled", job.all(), soon(), signal.get(), next).is_ok());
    EXPECT_FALSE(signal->raised());
  });
}

TEST(ControlClient, ALocalSignalEndsTheWaitOfAll) {
  Job job(3);  // rank 2 never comes
  AbortSignal signal;
  std::jthread raiser([&] {
    std::this_thread::sleep_for(100ms);
    signal.raise(unavailable("no engine"));
  });
  job.on({0, 1}, [&](int rank) {
    const Status status = job[rank].barrier("x", job.all(), soon(), rank == 0 ? &signal : nullptr);
    EXPECT_THAT(status.message(), HasSubstr("no engine")) << "rank " << rank;
    EXPECT_EQ(status.code(), rank == 0 ? StatusCode::kUnavailable : StatusCode::kAborted);
  });
  raiser.join();
  EXPECT_EQ(job[0].barrier("y", job.all(), soon(), &signal).message(), "no engine");
}

TEST(ControlClient, MessagesArriveInOrderAndOldEpochsAreDropped) {
  Job job(2);
  std::mutex mutex;
  std::vector<std::string> got;
  std::promise<void> last;
  job[1].set_message_handler([&](int from, std::uint64_t epoch, std::span<const std::byte> data) {
    const std::lock_guard lock(mutex);
    got.push_back(std::to_string(from) + ":" + std::to_string(epoch) + ":" + text(data));
    if (text(data) == "last") last.set_value();
    EXPECT_EQ(job[1].barrier("inside", job.all(), soon()).code(), StatusCode::kFailedPrecondition);
  });
  const std::uint64_t epoch = job.begin(job.all());
  for (int i = 0; i < 100; ++i) job[0].send(1, epoch, bytes(std::to_string(i)));
  job[0].send(1, epoch + 7, bytes("never begun"));
  job[0].end_update(epoch);
  job[0].send(1, epoch, bytes("after its end"));
  job[0].send(1, 0, bytes("last"));
  ASSERT_EQ(last.get_future().wait_for(20s), std::future_status::ready);
  const std::lock_guard lock(mutex);
  ASSERT_EQ(got.size(), 101U);
  EXPECT_EQ(got[99], "0:" + std::to_string(epoch) + ":99");
  EXPECT_EQ(got[100], "0:0:last");
}

TEST(ControlClient, LeavingFailsTheWaitOfOthersAtOnce) {
  Job job(3);
  const std::uint64_t epoch = job.begin(job.all());
  auto signal = std::make_shared<AbortSignal>();
  job[0].watch(epoch, signal);
  std::jthread leaver([&] { job.drop(2); });
  const Status status = job[0].barrier("x", job.all(), soon());
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("rank 2 (host"));
  EXPECT_THAT(status.message(), HasSubstr("has left"));
  EXPECT_EQ(status.rank(), 2);
  EXPECT_TRUE(wait_readable(signal->fd(), soon()).value());
  // The others go on among themselves.
  const std::vector<int> rest = {0, 1};
  EXPECT_GT(job.begin(rest), epoch);
  leaver.join();
  // And it may come back.
  auto again = ControlClient::join(job.options_of(2), 20s);
  ASSERT_TRUE(again) << again.status().to_string();
  job.slot(2) = std::move(*again);
  job.on_all([&](int rank) { EXPECT_TRUE(job[rank].barrier("x", job.all(), soon()).is_ok()); });
}

TEST(ControlClient, WrongJoinsAreRefusedAtOnce) {
  HubOptions hub;
  hub.secret = "s3cret";
  hub.bind_host = "127.0.0.1";
  hub.world_size = 2;
  hub.job = "a";
  auto started = Hub::start(hub);
  ASSERT_TRUE(started);
  JoinOptions right{
      .hub = (*started)->address(), .rank = 0, .world_size = 2, .job = "a", .secret = "s3cret"};
  const auto refusal = [](const JoinOptions& options) {
    return ControlClient::join(options, 60s).status().message();
  };
  JoinOptions wrong = right;
  wrong.secret = "s3creT";
  EXPECT_THAT(refusal(wrong), HasSubstr("another secret"));
  wrong = right;
  wrong.job = "b";
  EXPECT_THAT(refusal(wrong), HasSubstr("of job \"b\""));
  wrong = right;
  wrong.world_size = 3;
  EXPECT_THAT(refusal(wrong), HasSubstr("expects 3 ranks, the job has 2"));
  wrong = right;
  wrong.rank = 2;
  EXPECT_THAT(refusal(wrong), HasSubstr("rank 2 of 2"));
  std::jthread first([&] {
    JoinOptions one = right;
    one.rank = 1;
    // Rank 0 never comes: but it must be there while its double is refused.
    const auto client = ControlClient::join(one, 2s);
    EXPECT_EQ(client.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(client.status().message(), HasSubstr("rank 0 of 2 never joined"));
  });
  std::this_thread::sleep_for(500ms);
  wrong = right;
  wrong.rank = 1;
  EXPECT_THAT(refusal(wrong), HasSubstr("has joined already"));
}

TEST(Hub, BeatsAsOftenAsAShortTimeoutNeeds) {
  EXPECT_TRUE(Hub::start({.bind_host = "127.0.0.1", .heartbeat_timeout = 500ms}));
  EXPECT_EQ(Hub::start({.bind_host = "127.0.0.1", .heartbeat_timeout = 9ms}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ControlClient, NoHubSaysWhy) {
  const auto client =
      ControlClient::join({.hub = {"127.0.0.1", 1}, .rank = 0, .world_size = 1}, 50ms);
  EXPECT_EQ(client.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(client.status().message(), HasSubstr("Connection refused"));
}

TEST(ControlClient, AJoinEndsWhenItIsGivenUp) {
  AbortSignal abort;
  JoinOptions nobody{.hub = {"127.0.0.1", 1}, .rank = 0, .world_size = 2, .abort = &abort};
  std::jthread other([&] { abort.raise(aborted("given up")); });
  EXPECT_EQ(ControlClient::join(nobody, 600s).status().message(), "given up");

  const auto hub = Hub::start({.bind_host = "127.0.0.1"});
  ASSERT_TRUE(hub.is_ok()) << hub.status().message();
  AbortSignal later;
  JoinOptions alone{.hub = (*hub)->address(), .rank = 0, .world_size = 2, .abort = &later};
  std::jthread one(
      [&] { EXPECT_EQ(ControlClient::join(alone, 600s).status().message(), "given up later"); });
  std::this_thread::sleep_for(50ms);  // it has mostly joined by now, but need not have
  later.raise(aborted("given up later"));
}

TEST(ControlClient, LosingTheHubEndsEverything) {
  Job job(2);
  const std::uint64_t epoch = job.begin(job.all());
  auto signal = std::make_shared<AbortSignal>();
  job[0].watch(epoch, signal);
  std::jthread stopper([&] { job.stop_hub(); });
  const Status status = job[0].barrier("x", job.all(), soon());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("lost the hub at 127.0.0.1"));
  EXPECT_TRUE(wait_readable(signal->fd(), soon()).value());
  EXPECT_EQ(job[0].put("k", {}, soon()).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(job[0].state().is_ok());
}

TEST(ControlClient, TheHubKnowsWhenAllHaveLeft) {
  Job job(2);
  EXPECT_EQ(job.hub().wait_until_empty(Deadline::after(10ms)).code(),
            StatusCode::kDeadlineExceeded);
  job.drop(0);
  job[1].leave();
  job[1].leave();
  EXPECT_TRUE(job.hub().wait_until_empty(soon()).is_ok());
  EXPECT_THAT(job[1].barrier("x", job.all(), soon()).message(), HasSubstr("has left"));
}

TEST(ControlClient, NamesAndIPv6Work) {
  for (const char* host : {"localhost", "::1"}) {
    auto hub = Hub::start({});
    ASSERT_TRUE(hub) << hub.status().to_string();
    auto client = ControlClient::join(
        {.hub = {host, (*hub)->address().port}, .rank = 0, .world_size = 1}, 5s);
    if (!client && std::string_view(host) == "::1")
      GTEST_SKIP() << "no IPv6 here: " << client.status().message();
    ASSERT_TRUE(client) << client.status().to_string();
    const std::vector<int> self = {0};
    EXPECT_TRUE((*client)->barrier("x", self, soon()).is_ok());
  }
}

TEST(Hub, ATakenPortIsAnError) {
  auto first = Hub::start({.bind_host = "127.0.0.1"});
  ASSERT_TRUE(first);
  auto second = Hub::start({.bind_host = "127.0.0.1", .port = (*first)->address().port});
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckpt
