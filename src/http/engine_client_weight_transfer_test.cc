#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/strings.h"
#include "http/engine_client_fixture.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using Verb = ScriptedAnswer::Verb;

class WeightTransferTest : public EngineClientTest {
 protected:
  WeightTransferTest() {
    for (const char* path : {"/init_weight_transfer_engine", "/start_weight_update",
                             "/update_weights", "/finish_weight_update"}) {
      server_.script(path, {.body = R"({"message":"ok"})"});
    }
    server_.script("/weight_info", {.body = R"({"weight_version":"7"})"});
  }
  Status update(const EngineUpdateOptions& options = {}) {
    return EngineClient(EngineKind::kVllmNative, server_.endpoint())
        .update_weights(kAddresses, options, soon(), abort_);
  }
};

// It has no sessions for draft models either, and its workers are not asked for them: of several
// that fail, vLLM leaves all answers but the first for its next call.
TEST_F(WeightTransferTest, CarriesAddressesAndSetsTheVersionLast) {
  const Status status = update({.weight_version = "7"});
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_THAT(paths(), ElementsAre("/init_weight_transfer_engine", "/start_draft_weight_update",
                                   "/start_weight_update", "/update_weights",
                                   "/finish_weight_update", "/weight_info"));
  EXPECT_EQ(server_.requests().at(1).method, "GET");
  EXPECT_EQ(json::parse(server_.requests().at(3).body),
            (json{{"update_info", {{"addresses", kAddresses}}}}));
  EXPECT_EQ(json::parse(server_.requests().at(4).body), (json{{"weight_version", "7"}}));
}

TEST_F(WeightTransferTest, ADraftModelHasASessionOfItsOwn) {
  server_.script("/collective_rpc", {.body = R"({"results":["True","True"]})"});  // as vLLM does
  server_.script("/start_draft_weight_update", {});
  const Status status = update({.weight_version = "7"});
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_THAT(paths(), ElementsAre("/init_weight_transfer_engine", "/start_draft_weight_update",
                                   "/collective_rpc", "/start_weight_update", "/update_weights",
                                   "/finish_weight_update", "/start_draft_weight_update",
                                   "/update_weights", "/finish_weight_update", "/weight_info"));
  EXPECT_EQ(json::parse(server_.requests().at(5).body), (json{{"weight_version", nullptr}}));
  EXPECT_EQ(json::parse(server_.requests().at(8).body), (json{{"weight_version", "7"}}));
}

TEST_F(WeightTransferTest, NoDraftModelIsNoErrorButADoubtIs) {
  server_.script("/start_draft_weight_update", {.status = 405});
  server_.script("/collective_rpc", {.body = R"({"results":["False","False"]})"});
  server_.script("/collective_rpc", {.body = R"({"results":[false,true]})"});
  for (int i = 0; i < 2; ++i) {
    const Status status = update();
    EXPECT_TRUE(status.is_ok()) << status.message();
    EXPECT_EQ(paths().size(), 6u * (i + 1));
  }
  const ScriptedAnswer doubts[] = {
      {.status = 500, .body = R"({"error":{"message":"what is in doubt"}})"},
      {.status = 404},
      {.body = "what is in doubt"},
      {.body = ""},
      {.body = R"({"results":[]})"},
      {.body = R"({"results":[null]})"},
      {.body = R"(["what is in doubt"])"},
  };
  for (const ScriptedAnswer& doubt : doubts) {
    ScriptedServer server;
    server.script("/init_weight_transfer_engine", {});
    server.script("/start_draft_weight_update", {.status = 405});
    server.script("/collective_rpc", doubt);
    const Status status = EngineClient(EngineKind::kVllmNative, server.endpoint())
                              .update_weights(kAddresses, {}, soon(), abort_);
    EXPECT_FALSE(status.is_ok()) << doubt.body;
    EXPECT_THAT(status.message(), HasSubstr("/collective_rpc"));
    EXPECT_EQ(server.requests().size(), 3u) << "nothing was begun";
  }
}

TEST_F(WeightTransferTest, AVersionThatWasNotTakenIsAnErrorUnlessNoneIsKept) {
  EXPECT_THAT(update({.weight_version = "8"}).message(),
              AllOf(HasSubstr("the weights are in place"), HasSubstr("\"7\", not \"8\"")));
  ScriptedServer old;
  for (const char* path : {"/init_weight_transfer_engine", "/start_weight_update",
                           "/update_weights", "/finish_weight_update"}) {
    old.script(path, {});
  }
  const Status status = EngineClient(EngineKind::kVllmNative, old.endpoint())
                            .update_weights(kAddresses, {.weight_version = "8"}, soon(), abort_);
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST_F(WeightTransferTest, ASessionThatWasLeftOpenIsFinishedFirst) {
  ScriptedServer server;
  for (const char* path :
       {"/init_weight_transfer_engine", "/update_weights", "/finish_weight_update"}) {
    server.script(path, {});
  }
  server.script(
      "/start_weight_update",
      {.status = 500,
       .body = R"({"error":{"message":"start_weight_update called while already active."}})"});
  server.script("/start_weight_update", {});
  const Status status = EngineClient(EngineKind::kVllmNative, server.endpoint())
                            .update_weights(kAddresses, {}, soon(), abort_);
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(server.requests().at(3).path, "/finish_weight_update");
}

// As vLLM 0.23 behaves with four workers: each call stops listening at the first error, and what
// the workers behind that one have answered is found by the calls after it.
TEST_F(WeightTransferTest, TheUpdateBehindAFailedOneFindsNoAnswersOfIt) {
  const ScriptedAnswer left = failed_inside("load failed");
  ScriptedServer server;
  server.script("/start_weight_update", {});
  server.script("/update_weights", left);
  server.script("/finish_weight_update", left);
  server.script("/init_weight_transfer_engine", {});
  server.script("/init_weight_transfer_engine", left);
  server.script("/init_weight_transfer_engine", {});
  server.script("/init_weight_transfer_engine", left);
  server.script("/init_weight_transfer_engine", {});
  const Status status = EngineClient(EngineKind::kVllmNative, server.endpoint())
                            .update_weights(kAddresses, {}, soon(), abort_);
  EXPECT_THAT(status.message(), HasSubstr("load failed"));
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 24u) << "as many good ones as may be between two errors";
  EXPECT_EQ(requests.at(4).path, "/finish_weight_update");
  for (std::size_t i = 5; i < requests.size(); ++i) {
    EXPECT_EQ(requests.at(i).path, "/init_weight_transfer_engine");
  }
}

TEST_F(WeightTransferTest, OneWorkerLeavesNoAnswers) {
  ScriptedServer server;
  for (const char* path : {"/init_weight_transfer_engine", "/start_weight_update"}) {
    server.script(path, {});
  }
  server.script("/update_weights", failed_inside("load failed"));
  server.script("/finish_weight_update", {});
  const Status status = EngineClient(EngineKind::kVllmNative, server.endpoint())
                            .update_weights({{"CPU-0", "ipc://@a"}}, {}, soon(), abort_);
  EXPECT_THAT(status.message(), HasSubstr("load failed"));
  EXPECT_EQ(server.requests().size(), 5u);
  EXPECT_EQ(server.requests().back().path, "/finish_weight_update");
}

TEST_F(WeightTransferTest, AnEngineWithoutOurBackendIsToldHowToGetIt) {
  const std::pair<const char*, const char*> refusals[] = {
      {"/init_weight_transfer_engine", "Weight transfer not configured. Please set it"},
      {"/update_weights", "Invalid update_info for IPCWeightTransferEngine: unexpected keyword"},
  };
  for (const auto& [path, text] : refusals) {
    ScriptedServer server;
    for (const char* each : {"/init_weight_transfer_engine", "/start_weight_update"}) {
      if (each != std::string(path)) server.script(each, {});
    }
    server.script(path, {.status = 500, .body = json{{"error", {{"message", text}}}}.dump()});
    const Status status = EngineClient(EngineKind::kVllmNative, server.endpoint())
                              .update_weights(kAddresses, {}, soon(), abort_);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("--weight-transfer-config"), HasSubstr("checkpoint_engine")));
  }
  const ScriptedServer old;
  EXPECT_THAT(EngineClient(EngineKind::kVllmNative, old.endpoint())
                  .update_weights(kAddresses, {}, soon(), abort_)
                  .message(),
              AllOf(HasSubstr("VLLM_SERVER_DEV_MODE=1"), HasSubstr("--engine vllm ")));
}

}  // namespace
}  // namespace ckpt
