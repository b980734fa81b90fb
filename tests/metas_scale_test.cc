// The gather of metas at the size of a large job: 16 processes with 4 ranks each learn 200,000
// tensors of each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/strings.h"
#include "checkpoint/model_shapes.h"
#include "checkpoint/split.h"
#include "control/control_client.h"
#include "control/hub.h"
#include "parameter_server/catalog_fingerprint.h"
#include "parameter_server/metas_exchange.h"

namespace ckpt {
namespace {

using namespace std::chrono_literals;

constexpr int kProcesses = 16, kRanksEach = 4, kRanks = kProcesses * kRanksEach;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kTensors = 20'000;
#else
constexpr std::size_t kTensors = 200'000;
#endif
/// Of the 64 ranks on few cores none may be taken for hung.
constexpr auto kHeartbeatTimeout = 30s;

Deadline soon() { return Deadline::after(90s); }

std::vector<int> all_ranks() {
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// DeepSeek-V3.1 with more layers than it has, cut to size; its tensors by rank.
std::vector<std::shared_ptr<const Layout>> make_layouts() {
  auto model = *model_tensors("deepseek-v3.1", {.layers = 140});
  EXPECT_GE(model.size(), kTensors);
  model.resize(kTensors);
  std::vector<std::shared_ptr<const Layout>> layouts;
  for (const auto& share : split_by_bytes(model, kRanks)) {
    std::vector<TensorInfo> tensors;
    for (const std::uint32_t i : share) tensors.push_back(model[i]);
    layouts.push_back(std::make_shared<const Layout>(Layout::make(std::move(tensors))));
  }
  return layouts;
}

/// What a rank holds after `step` training steps: other digests, at the same places.
RankMetas metas_of(int rank, std::shared_ptr<const Layout> layout, std::uint64_t step) {
  RankMetas metas;
  metas.instance.rank = rank;
  metas.instance.epoch = step;
  metas.instance.host_id = concat("host-", rank / kRanksEach);
  metas.instance.layout_hash = layout->hash;
  std::uint64_t offset = 0;
  for (const TensorInfo& tensor : layout->tensors) {
    metas.instance.offsets.push_back(offset);
    metas.instance.digests.push_back((step << 32) + metas.instance.digests.size());
    offset += (tensor.bytes + 255) / 256 * 256;
  }
  metas.layout = std::move(layout);
  return metas;
}

/// A rank of the test; its errors are the process's output, and false.
class Rank {
 public:
  Rank(int port, int rank, std::shared_ptr<const Layout> layout)
      : rank_(rank), layout_(std::move(layout)) {
    auto client = ControlClient::join({.hub = {"127.0.0.1", port},
                                       .rank = rank,
                                       .world_size = kRanks,
                                       .job = "metas",
                                       .host_id = concat("host-", rank / kRanksEach)},
                                      90s);
    EXPECT_TRUE(client) << client.status().to_string();
    if (client) client_ = std::move(*client);
  }

  explicit operator bool() const { return client_ != nullptr; }
  ControlClient& client() { return *client_; }

  Result<std::shared_ptr<const Catalog>> gather(std::uint64_t step) {
    return exchange_.gather(*client_, "scale", metas_of(rank_, layout_, step), soon());
  }
  MetasTraffic traffic() const { return exchange_.traffic(); }

  /// True when all ranks have gathered the same.
  bool agrees(const Catalog& catalog) {
    const std::uint64_t mine = catalog_fingerprint(catalog);
    const auto all = client_->all_gather("fingerprints", all_ranks(),
                                         std::as_bytes(std::span(&mine, 1)), soon());
    EXPECT_TRUE(all) << all.status().to_string();
    return all && std::ranges::all_of(*all, [&](const auto& bytes) {
             return std::ranges::equal(bytes, std::as_bytes(std::span(&mine, 1)));
           });
  }

 private:
  const int rank_;
  const std::shared_ptr<const Layout> layout_;
  std::unique_ptr<ControlClient> client_;
  MetasExchange exchange_;
};

/// Processes of four ranks; forked before this process has threads.
class Job {
 public:
  /// `body(port, rank)` on each rank, a thread each; true is success.
  explicit Job(const std::function<bool(int port, int rank)>& body) {
    for (int process = 0; process < kProcesses; ++process) start(process, body);
    auto hub = Hub::start({.bind_host = "127.0.0.1", .heartbeat_timeout = kHeartbeatTimeout});
    EXPECT_TRUE(hub) << hub.status().to_string();
    if (hub) hub_ = std::move(*hub);
    const int port = hub_ ? hub_->address().port : 0;
    for (const UniqueFd& fd : ports_)
      EXPECT_EQ(write(fd.get(), &port, sizeof(port)), ssize_t{sizeof(port)});
  }
  ~Job() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

  /// Exit codes, 128 + its number where a signal ended the process.
  std::vector<int> wait() {
    std::vector<int> codes;
    for (const pid_t pid : std::exchange(pids_, {})) {
      int status = 0;
      waitpid(pid, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    return codes;
  }

 private:
  void start(int process, const std::function<bool(int port, int rank)>& body) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[1]);
      int port = 0;
      const bool told = read(ends[0], &port, sizeof(port)) == ssize_t{sizeof(port)};
      std::atomic<int> failures{told ? 0 : kRanksEach};
      if (told) {
        std::vector<std::jthread> threads;
        for (int i = 0; i < kRanksEach; ++i) {
          threads.emplace_back(
              [&, i] { failures += body(port, process * kRanksEach + i) ? 0 : 1; });
        }
      }
      std::fflush(nullptr);
      _exit(failures);
    }
    pids_.push_back(pid);
    close(ends[0]);
    ports_.emplace_back(ends[1]);
  }

  std::vector<pid_t> pids_;
  std::vector<UniqueFd> ports_;
  std::unique_ptr<Hub> hub_;
};

TEST(MetasScale, AllRanksLearnAllTensorsAndALayoutTravelsOnce) {
  const auto layouts = make_layouts();
  Job job([&](int port, int number) {
    Rank rank(port, number, layouts[static_cast<std::size_t>(number)]);
    if (!rank) return false;
    const auto first = rank.gather(1);
    EXPECT_TRUE(first) << first.status().to_string();
    if (!first || !rank.agrees(**first)) return false;
    EXPECT_EQ((*first)->tensors().size(), kTensors);
    const MetasTraffic before = rank.traffic();
    EXPECT_EQ(before.layouts_sent, 1u);
    EXPECT_EQ(before.layouts_received, std::uint64_t{kRanks - 1});

    const auto second = rank.gather(2);
    EXPECT_TRUE(second) << second.status().to_string();
    if (!second || !rank.agrees(**second)) return false;
    EXPECT_NE(catalog_fingerprint(**first), catalog_fingerprint(**second));
    const MetasTraffic after = rank.traffic();
    EXPECT_EQ(after.layouts_sent, before.layouts_sent);
    EXPECT_EQ(after.layouts_received, before.layouts_received);
    EXPECT_EQ(after.layout_bytes, before.layout_bytes);
    EXPECT_GT(after.instance_bytes, before.instance_bytes);
    return !::testing::Test::HasFailure() &&
           rank.client().barrier("end", all_ranks(), soon()).is_ok();
  });
  EXPECT_THAT(job.wait(), ::testing::Each(0));
}

TEST(MetasScale, ARankThatDiesInTheMiddleOfAGatherIsNamedToAllOthers) {
  constexpr int kVictim = 37;
  constexpr int kVictimsProcess = kVictim / kRanksEach;
  const auto layouts = make_layouts();
  std::vector<int> survivors = all_ranks();
  std::erase_if(survivors, [](int rank) { return rank / kRanksEach == kVictimsProcess; });
  Job job([&](int port, int number) {
    Rank rank(port, number, layouts[static_cast<std::size_t>(number)]);
    if (!rank || !rank.client().barrier("joined", all_ranks(), soon()).is_ok()) return false;
    if (number == kVictim) {
      // It has sent its layout, and the others wait for its instance data.
      const auto key = concat("layout/", layouts[kVictim]->hash.to_string());
      if (!rank.client().put(key, encode_layout(*layouts[kVictim]), soon()).is_ok()) return false;
      kill(getpid(), SIGKILL);
    }
    const Status status = rank.gather(1).status();
    if (number / kRanksEach == kVictimsProcess) return true;  // it dies with its process
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_EQ(status.rank().value_or(-1) / kRanksEach, kVictimsProcess) << status.to_string();
    // Whoever left now would be missed by those that have not heard yet.
    EXPECT_TRUE(rank.client().barrier("heard", survivors, soon()).is_ok());
    return !::testing::Test::HasFailure();
  });
  std::vector<int> expected(kProcesses, 0);
  expected[kVictimsProcess] = 128 + SIGKILL;
  EXPECT_EQ(job.wait(), expected);
}

}  // namespace
}  // namespace ckpt
