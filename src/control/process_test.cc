// Ranks as processes: killed, hung, started again. Children are forked before this process has
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "control/control_client.h"
#include "control/hub.h"

namespace ckpt {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kInterval = 100ms;
constexpr auto kTimeout =
    1500ms;  // generous: sanitizers on a loaded machine must not look like a hang

/// More than the heartbeat timeout between a rank's end and the others' error: what a machine with
/// two cores may need to run again all that waits on it, under sanitizers and beside other tests.
/// Far from the 30 s that every call here may take: an error by its deadline comes too late.
constexpr auto kSlack = 10s;

using Clock = std::chrono::steady_clock;

Deadline soon() { return Deadline::after(30s); }

HubOptions hub_options() {
  return {.bind_host = "127.0.0.1", .heartbeat_interval = kInterval, .heartbeat_timeout = kTimeout};
}

std::vector<int> first(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// A forked process that runs `body` with the hub's port once that is known, and ends with its
/// result.
class Child {
 public:
  explicit Child(const std::function<int(int port)>& body) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[1]);
      int port = 0;
      const bool told = read(ends[0], &port, sizeof(port)) == sizeof(port);
      const int result = told ? body(port) : 99;
      std::fflush(nullptr);  // what failed in there
      _exit(result);
    }
    close(ends[0]);
    port_.reset(ends[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      send_signal(SIGKILL);
      wait();
    }
  }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), port_(std::move(other.port_)) {}

  void tell(int port) { EXPECT_EQ(write(port_.get(), &port, sizeof(port)), ssize_t(sizeof(port))); }
  void send_signal(int number) const { kill(pid_, number); }
  /// Returns when all its threads stand still.
  void stop() const {
    send_signal(SIGSTOP);
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  int wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  UniqueFd port_;
};

Result<std::unique_ptr<ControlClient>> join(int port, int rank, int size, std::string host = "a",
                                            std::chrono::milliseconds patience = 30s) {
  return ControlClient::join({.hub = {"127.0.0.1", port},
                              .rank = rank,
                              .world_size = size,
                              .job = "processes",
                              .host_id = std::move(host)},
                             patience);
}

/// Rank 3 of 4: joins the update, publishes its channel, then sleeps until it is killed.
int victim(int port) {
  const auto client = join(port, 3, 4, "b");
  if (!client) return 1;
  const auto epoch = (*client)->begin_update("update", first(4), soon());
  if (!epoch) return 2;
  (*client)->publish_channel(*epoch, "ipc://@stock-3");
  if (!(*client)->barrier("published", first(4), soon()).is_ok()) return 3;
  std::this_thread::sleep_for(60s);
  return 4;
}

/// What ranks 0 to 2, in this process, see of the victim's end: rank 2 is of its host.
void expect_loss_of_rank_3(int number, std::string_view reason) {
  Child child(victim);
  auto hub = Hub::start(hub_options());
  ASSERT_TRUE(hub) << hub.status().to_string();
  const int port = (*hub)->address().port;
  child.tell(port);
  std::vector<std::unique_ptr<ControlClient>> clients(3);
  std::atomic<int> ready{0}, told{0};
  std::atomic<int> channels{0};
  std::promise<Clock::time_point> end_of_3;
  const std::shared_future<Clock::time_point> ended(end_of_3.get_future());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        auto joined = join(port, rank, 4, rank == 2 ? "b" : "a");
        ASSERT_TRUE(joined) << joined.status().to_string();
        ControlClient& client = *(clients[static_cast<std::size_t>(rank)] = std::move(*joined));
        std::promise<PeerLost> news;
        client.on_peer_lost([&](const PeerLost& lost) { news.set_value(lost); });
        const auto epoch = client.begin_update("update", first(4), soon());
        ASSERT_TRUE(epoch) << epoch.status().to_string();
        auto signal = std::make_shared<AbortSignal>();
        client.watch(*epoch, signal);
        ASSERT_TRUE(client.barrier("published", first(4), soon()).is_ok());
        if (++ready == 3) {
          end_of_3.set_value(Clock::now());
          child.send_signal(number);
        }

        const Status status = client.barrier("filled", first(4), soon(), nullptr, *epoch);
        EXPECT_LT(Clock::now() - ended.get(), kTimeout + kSlack);
        EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
        EXPECT_EQ(status.rank(), 3);
        EXPECT_THAT(status.message(), HasSubstr(std::string(reason)));
        EXPECT_TRUE(wait_readable(signal->fd(), soon()).value());
        EXPECT_EQ(signal->cause().rank(), 3);
        auto heard = news.get_future();
        ASSERT_EQ(heard.wait_for(30s), std::future_status::ready);
        const PeerLost lost = heard.get();
        client.on_peer_lost({});
        EXPECT_EQ(lost.rank, 3);
        EXPECT_EQ(lost.host_id, "b");
        for (const auto& channel : lost.channels) {
          EXPECT_EQ(channel.address, "ipc://@stock-3");
          EXPECT_EQ(channel.epoch, *epoch);
          channels += rank == 2 ? 1 : 100;
        }
        client.end_update(*epoch);
        // The living go on without it.
        EXPECT_TRUE(client.begin_update("update", first(3), soon()));
        ++told;
      });
    }
  }
  EXPECT_EQ(told, 3);
  EXPECT_EQ(channels, 1) << "only the rank of the same host rescues";
  // A new process takes the number.
  const auto again = join(port, 3, 4, "b");
  EXPECT_TRUE(again) << again.status().to_string();
}

TEST(Processes, AKilledRankIsNamed) {
  expect_loss_of_rank_3(SIGKILL, "its connection to the hub closed");
}
TEST(Processes, AHungRankIsNamed) { expect_loss_of_rank_3(SIGSTOP, "silent for 1500 ms"); }

TEST(Processes, AHungRankThatWakesUpKnowsThatItWasLost) {
  Child child([](int port) {
    const auto client = join(port, 1, 2);
    if (!client) return 1;
    // So that the other knows that this one has returned from join; may itself end with the loss.
    static_cast<void>((*client)->barrier("joined", first(2), soon()));
    const Status status = (*client)->get("never", soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    return (*client)->state().code() == StatusCode::kPeerLost ? 0 : 2;
  });
  auto hub = Hub::start(hub_options());
  ASSERT_TRUE(hub);
  child.tell((*hub)->address().port);
  auto client = join((*hub)->address().port, 0, 2);
  ASSERT_TRUE(client) << client.status().to_string();
  ASSERT_TRUE((*client)->barrier("joined", first(2), soon()).is_ok());
  child.stop();
  const auto stopped = Clock::now();
  EXPECT_EQ((*client)->barrier("x", first(2), soon()).code(), StatusCode::kPeerLost);
  EXPECT_LT(Clock::now() - stopped, kTimeout + kSlack);
  child.send_signal(SIGCONT);
  EXPECT_EQ(child.wait(), 0);
}

TEST(Processes, RanksThatNeverJoinAreNamed) {
  Child child([](int port) {
    const auto client = join(port, 2, 4, "a", kTimeout);
    return client.status().code() == StatusCode::kDeadlineExceeded ? 0 : 1;
  });
  auto hub = Hub::start(hub_options());
  ASSERT_TRUE(hub);
  const auto begin = Clock::now();
  child.tell((*hub)->address().port);
  const Status status = join((*hub)->address().port, 0, 4, "a", kTimeout).status();
  EXPECT_THAT(status.message(), HasSubstr("1, 3")) << status.to_string();
  EXPECT_EQ(child.wait(), 0);
  EXPECT_LT(Clock::now() - begin, kTimeout + kSlack);
}

TEST(Processes, AHungHubIsNoticed) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Child child([&ends](int) {
    auto hub = Hub::start(hub_options());
    if (!hub) return 1;
    const int port = (*hub)->address().port;
    if (write(ends[1], &port, sizeof(port)) != ssize_t(sizeof(port))) return 2;
    return (*hub)->wait_until_empty(Deadline::after(60s)).is_ok() ? 0 : 3;
  });
  child.tell(1);
  int port = 0;
  ASSERT_EQ(read(ends[0], &port, sizeof(port)), ssize_t(sizeof(port)));
  close(ends[0]);
  close(ends[1]);
  auto client = join(port, 0, 1);
  ASSERT_TRUE(client) << client.status().to_string();
  child.stop();
  const auto stopped = Clock::now();
  const Status status = (*client)->barrier("x", first(1), soon());
  EXPECT_LT(Clock::now() - stopped, kTimeout + kSlack);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("silent for 1500 ms"));
}

TEST(Processes, SixteenTimesFourRanksGather) {
  constexpr int kProcesses = 16, kRanksEach = 4, kSize = kProcesses * kRanksEach;
  constexpr std::size_t kBytes = 64 << 10;  // 4 MiB to each rank
  const auto run_rank = [](int port, int rank) {
    const auto client = join(port, rank, kSize);
    EXPECT_TRUE(client) << client.status().to_string();
    if (!client) return false;
    const std::vector<std::byte> mine(kBytes, std::byte(rank));
    const auto all = (*client)->all_gather("metas", first(kSize), mine, soon());
    EXPECT_TRUE(all) << all.status().to_string();
    if (!all || all->size() != std::size_t{kSize}) return false;
    for (int other = 0; other < kSize; ++other) {
      const auto& part = (*all)[static_cast<std::size_t>(other)];
      if (part.size() != kBytes || part.front() != std::byte(other) ||
          part.back() != part.front()) {
        return false;
      }
    }
    // Nobody leaves while others still wait for it.
    return (*client)->barrier("end", first(kSize), soon()).is_ok();
  };
  std::vector<Child> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.emplace_back([&run_rank, process](int port) {
      std::atomic<int> failures{0};
      {
        std::vector<std::jthread> threads;
        for (int i = 0; i < kRanksEach; ++i) {
          threads.emplace_back(
              [&, i] { failures += run_rank(port, process * kRanksEach + i) ? 0 : 1; });
        }
      }
      return failures.load();
    });
  }
  // Slow beats: 64 ranks on few cores may not run for seconds.
  auto hub = Hub::start({.bind_host = "127.0.0.1", .heartbeat_timeout = 20s});
  ASSERT_TRUE(hub);
  for (Child& child : children) child.tell((*hub)->address().port);
  for (Child& child : children) EXPECT_EQ(child.wait(), 0);
  EXPECT_TRUE((*hub)->wait_until_empty(soon()).is_ok());
}

}  // namespace
}  // namespace ckpt
