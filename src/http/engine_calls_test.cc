#include "http/engine_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/strings.h"
#include "http/scripted_server.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// The update's side of a call, in the hands of the test.
class FakeContext : public EngineCallContext {
 public:
  explicit FakeContext(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  double remaining_seconds() const override { return 10; }
  bool cancelled() const override { return false; }
  void on_cancel(std::function<void()> stop) override {
    const std::lock_guard lock(mutex_);
    stop_ = std::move(stop);
  }
  void cancel() {
    const std::lock_guard lock(mutex_);
    stop_();
  }

 private:
  const int rank_;
  std::mutex mutex_;
  std::function<void()> stop_;
};

class EngineCallsTest : public testing::Test {
 protected:
  EngineCallsTest() {
    for (int rank = 0; rank < 4; ++rank) {
      all_ranks_.push_back({concat("CPU-", rank % 2), concat("ipc://@", rank, ".v2.sock")});
    }
    for (auto& server : servers_) {
      server.script("/collective_rpc", {});
      server.script("/update_weights_from_ipc", {.body = R"({"success":true})"});
      options_.endpoints.push_back(server.endpoint());
    }
    options_.instance_size = 2;
  }

  Status call(int rank) {
    FakeContext context(rank);
    return make_engine_call(options_)(all_ranks_, context);
  }

  ScriptedServer servers_[2];
  std::vector<WorkerAddress> all_ranks_;
  EngineCallOptions options_;
};

TEST_F(EngineCallsTest, TheFirstRankOfAnInstanceCallsItsEngine) {
  for (int rank = 0; rank < 4; ++rank) {
    const Status status = call(rank);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  for (int instance = 0; instance < 2; ++instance) {
    const auto requests = servers_[instance].requests();
    ASSERT_EQ(requests.size(), 1u);
    const json expected = {{"CPU-0", concat("ipc://@", 2 * instance, ".v2.sock")},
                           {"CPU-1", concat("ipc://@", 2 * instance + 1, ".v2.sock")}};
    EXPECT_EQ(json::parse(requests[0].body)["args"][0], expected);
  }
}

TEST_F(EngineCallsTest, RanksThatAreNoRecipientsAreNotTold) {
  for (int rank : {0, 1}) all_ranks_[static_cast<std::size_t>(rank)] = {};
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(call(rank).is_ok());
  EXPECT_TRUE(servers_[0].requests().empty());
  EXPECT_EQ(servers_[1].requests().size(), 1u);
}

TEST_F(EngineCallsTest, SglangHasItsOwnCall) {
  options_.engine = EngineChoice::kSglang;
  EXPECT_TRUE(call(0).is_ok());
  EXPECT_EQ(servers_[0].requests().at(0).path, "/update_weights_from_ipc");
}

TEST_F(EngineCallsTest, WithoutAnEngineTheAddressesAreAnnounced) {
  options_.engine = EngineChoice::kNone;
  options_.endpoints.clear();
  std::map<int, std::map<std::string, std::string>> announced;
  options_.announce = [&](int instance, const auto& addresses) { announced[instance] = addresses; };
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(call(rank).is_ok());
  ASSERT_EQ(announced.size(), 2u);
  EXPECT_EQ(announced[1].at("CPU-1"), "ipc://@3.v2.sock");
}

TEST_F(EngineCallsTest, AnInstanceWithoutEndpointIsRefused) {
  options_.endpoints.resize(1);
  EXPECT_TRUE(call(2).is_ok()) << "one for all";
  options_.endpoints.clear();
  EXPECT_THAT(call(2).message(), HasSubstr("instance 1"));
}

TEST_F(EngineCallsTest, EndsWithTheUpdateAndWithAnInterrupt) {
  ScriptedServer hangs;
  const ScriptedAnswer hang = {.verb = ScriptedAnswer::Verb::kHang};
  // The second call is the one that tidies up behind the first, which failed elsewhere.
  for (const ScriptedAnswer& answer : {hang, ScriptedAnswer{.status = 404}, hang}) {
    hangs.script("/collective_rpc", answer);
  }
  options_.endpoints = {hangs.endpoint()};
  options_.interrupt = std::make_shared<AbortSignal>();
  const auto wait_for_request = [&](std::size_t count) {
    while (hangs.requests().size() < count) std::this_thread::yield();
  };
  {
    FakeContext context(0);
    std::thread other([&] {
      wait_for_request(1);
      context.cancel();
    });
    EXPECT_EQ(make_engine_call(options_)(all_ranks_, context).code(), StatusCode::kAborted);
    other.join();
    context.cancel();  // harmless when the call has returned
  }
  std::thread other([&] {
    wait_for_request(3);
    options_.interrupt->raise(aborted("interrupted by the user"));
  });
  EXPECT_EQ(call(0).message(), "interrupted by the user");
  other.join();
}

TEST(EngineChoice, IsOneOfFour) {
  EXPECT_EQ(engine_kind(*parse_engine_choice("vllm-native")), EngineKind::kVllmNative);
  EXPECT_EQ(*parse_engine_choice("none"), EngineChoice::kNone);
  EXPECT_FALSE(parse_engine_choice("vLLM").is_ok());
}

}  // namespace
}  // namespace ckpt
