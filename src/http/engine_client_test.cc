#include "http/engine_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/strings.h"
#include "http/engine_client_fixture.h"
#include "http/scripted_server.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using Verb = ScriptedAnswer::Verb;

TEST_F(EngineClientTest, VllmIsToldTheAddressesOfItsWorkers) {
  server_.script("/collective_rpc", {.body = R"({"results":[null,null]})"});
  const Status status = update_vllm();
  ASSERT_TRUE(status.is_ok()) << status.message();
  const auto request = server_.requests().at(0);
  EXPECT_EQ(request.method, "POST");
  EXPECT_THAT(request.headers, HasSubstr("Content-Type: application/json"));
  EXPECT_THAT(request.headers, HasSubstr("Authorization: Bearer key"));
  const json body = json::parse(request.body);
  EXPECT_EQ(body["method"], "update_weights_from_ipc");
  EXPECT_EQ(body["args"], json::array({kAddresses}));
  EXPECT_EQ(body["kwargs"], json::object());
  EXPECT_GT(body["timeout"].get<double>(), 0);
  EXPECT_LE(body["timeout"].get<double>(), 10);
}

TEST_F(EngineClientTest, SglangIsToldTheAddressesOfItsWorkers) {
  server_.script("/update_weights_from_ipc", {.body = R"({"success":true,"message":"ok"})"});
  ASSERT_TRUE(update_sglang().is_ok());
  ASSERT_TRUE(update_sglang({.weight_version = "7"}).is_ok());
  const json first = json::parse(server_.requests().at(0).body);
  EXPECT_EQ(first["zmq_handles"], json(kAddresses));
  EXPECT_EQ(first["flush_cache"], true);
  EXPECT_TRUE(first["weight_version"].is_null());
  EXPECT_EQ(json::parse(server_.requests().at(1).body)["weight_version"], "7");
}

TEST_F(EngineClientTest, AQueryGoesWithTheCallThatCarriesTheAddresses) {
  server_.script("/collective_rpc", {});
  server_.script("/update_weights_from_ipc", {});
  ASSERT_TRUE(update_vllm({.query = "?x=1"}).is_ok());
  ASSERT_TRUE(update_sglang({.query = "?x=2"}).is_ok());
  EXPECT_THAT(paths(), ElementsAre("/collective_rpc?x=1", "/update_weights_from_ipc?x=2"));
}

TEST_F(EngineClientTest, VllmIsPausedResetAndResumedInThisOrder) {
  for (const char* path :
       {"/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"}) {
    server_.script(path, {});
  }
  const Status status =
      update_vllm({.weight_version = "7", .reset_prefix_cache = true, .pause_mode = "keep"});
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_THAT(paths(),
              testing::ElementsAre("/pause?mode=keep", "/collective_rpc", "/update_weight_version",
                                   "/reset_prefix_cache", "/resume"));
  EXPECT_EQ(json::parse(server_.requests().at(2).body), json({{"new_version", "7"}}));
}

TEST_F(EngineClientTest, RequestsThatHoldCachedPrefixesStartOver) {
  for (const char* path : {"/pause", "/collective_rpc", "/update_weight_version", "/resume"}) {
    server_.script(path, {});
  }
  for (const char* success : {"false", "false", "true"}) {
    server_.script("/reset_prefix_cache", {.body = concat(R"({"success":)", success, "}")});
  }
  const Status status =
      update_vllm({.weight_version = "7", .reset_prefix_cache = true, .pause_mode = "keep"});
  ASSERT_TRUE(status.is_ok()) << status.message();
  const std::string insists = "/reset_prefix_cache?reset_running_requests=true";
  EXPECT_THAT(paths(), ElementsAre("/pause?mode=keep", "/collective_rpc", "/update_weight_version",
                                   "/reset_prefix_cache", insists, insists, "/resume"));
}

TEST_F(EngineClientTest, ResumesAnEngineWhoseUpdateFailed) {
  for (const char* path : {"/pause", "/resume"}) server_.script(path, {});
  server_.script("/collective_rpc", {.status = 500, .body = R"({"error":{"message":"boom"}})"});
  const Status status = update_vllm({.pause_mode = "wait"});
  EXPECT_THAT(status.message(), HasSubstr("boom"));
  EXPECT_EQ(paths().back(), "/resume");
}

TEST_F(EngineClientTest, ResumesAnEngineWhosePauseTookTooLong) {
  server_.script("/pause", {.verb = Verb::kHang});
  server_.script("/resume", {});
  EXPECT_EQ(update_vllm({.pause_mode = "wait"}, at_once()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(paths(), Contains("/resume"));
}

TEST_F(EngineClientTest, ResumesAnEngineWhosePauseWasGivenUp) {
  server_.script("/pause", {.verb = Verb::kHang});
  server_.script("/resume", {});
  std::thread other([&] {
    while (server_.requests().empty()) std::this_thread::yield();
    abort_.raise(data_loss("rank 3 failed"));
  });
  const Status status = update_vllm({.pause_mode = "wait"}, Deadline::after_seconds(100));
  other.join();
  EXPECT_EQ(status.message(), "rank 3 failed");
  EXPECT_THAT(paths(), ElementsAre("/pause?mode=wait", "/resume"));
  EXPECT_EQ(update_vllm({.pause_mode = "wait"}).message(), "rank 3 failed");
  EXPECT_EQ(paths().size(), 2u) << "an update that was aborted before calls nobody";
}

TEST_F(EngineClientTest, ResumesAnEngineWhosePauseFailed) {
  server_.script("/pause", {.status = 500, .body = R"({"error":{"message":"boom"}})"});
  server_.script("/resume", {});
  EXPECT_THAT(update_vllm({.pause_mode = "keep"}).message(), HasSubstr("boom"));
  EXPECT_THAT(paths(), ElementsAre("/pause?mode=keep", "/resume"));
}

TEST_F(EngineClientTest, AFailureBehindTheUpdateSaysThatTheWeightsAreThere) {
  server_.script("/collective_rpc", {});
  server_.script("/update_weight_version", {});
  server_.script("/reset_prefix_cache", {.body = R"({"success":false})"});
  const Status status = update_vllm({.weight_version = "7", .reset_prefix_cache = true},
                                    Deadline::after_seconds(0.5));
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("the weights are in place"), HasSubstr("/reset_prefix_cache")));
  EXPECT_THAT(paths(), Contains("/update_weight_version")) << "they have their new name";
}

TEST_F(EngineClientTest, BehindAFailedUpdateNoAnswersOfItAreLeft) {
  server_.script("/collective_rpc", failed_inside("load failed"));
  server_.script("/collective_rpc", {});
  server_.script("/collective_rpc", failed_inside("load failed"));
  server_.script("/collective_rpc", {.body = R"({"results":[null,null]})"});
  EXPECT_THAT(update_vllm().message(), HasSubstr("load failed"));
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 19u) << "as many good ones as may be between two errors";
  for (std::size_t i = 1; i < requests.size(); ++i) {
    EXPECT_EQ(json::parse(requests[i].body), json({{"method", "check_health"}}));
  }
}

TEST_F(EngineClientTest, WhatIsNoCallOfVllmsWorkersIsMadeOnce) {
  const std::map<std::string, std::string> one = {{"CPU-0", "ipc://@a.v2.sock"}};
  const struct {
    const char* name;
    const char* path;
    ScriptedAnswer answer;
    std::map<std::string, std::string> addresses;
  } cases[] = {
      {"somebody's own handler", "/inference", failed_inside("no"), kAddresses},
      {"one worker leaves nothing", "/collective_rpc", failed_inside("no"), one},
      {"no error of vLLM",
       "/collective_rpc",
       {.status = 500, .body = R"({"error":{"message":"no","code":500}})"},
       kAddresses},
      {"a proxy", "/collective_rpc", {.status = 502}, kAddresses},
      {"not found", "/collective_rpc", {.status = 404}, kAddresses},
      {"broken off", "/collective_rpc", {.verb = Verb::kReset}, kAddresses},
      {"hangs until the deadline", "/collective_rpc", {.verb = Verb::kHang}, kAddresses},
  };
  for (const auto& each : cases) {
    ScriptedServer server;
    server.script(each.path, each.answer);
    const Deadline deadline = each.answer.verb == Verb::kHang ? Deadline::after_seconds(2) : soon();
    EXPECT_FALSE(EngineClient(EngineKind::kVllm, server.endpoint())
                     .update_weights(each.addresses, {.rpc_path = each.path}, deadline, abort_)
                     .is_ok());
    EXPECT_EQ(server.requests().size(), 1u) << each.name;
  }
}

TEST_F(EngineClientTest, AFailureElsewhereIsTidiedUpBehindUnlessTheUserWaits) {
  for (const bool interrupted : {false, true}) {
    ScriptedServer server;
    server.script("/collective_rpc", {.verb = Verb::kHang});
    server.script("/collective_rpc", {});
    AbortSignal abort;
    const auto interrupt = std::make_shared<AbortSignal>();
    std::thread other([&] {
      while (server.requests().empty()) std::this_thread::yield();
      if (interrupted) interrupt->raise(aborted("interrupted"));
      abort.raise(aborted("the update has failed elsewhere"));
    });
    const Status status = EngineClient(EngineKind::kVllm, server.endpoint())
                              .update_weights(kAddresses, {.interrupt = interrupt}, soon(), abort);
    other.join();
    EXPECT_EQ(status.message(), "the update has failed elsewhere");
    EXPECT_EQ(server.requests().size(), interrupted ? 1u : 17u);
  }
}

struct AnswerCase {
  const char* name;
  ScriptedAnswer answer;
  StatusCode code;
  std::vector<const char*> says;
};

TEST_F(EngineClientTest, EveryRefusalSaysWhatToDo) {
  const AnswerCase cases[] = {
      {"not found",
       {.status = 404, .body = R"({"detail":"Not Found"})"},
       StatusCode::kFailedPrecondition,
       {"VLLM_SERVER_DEV_MODE=1", "/collective_rpc"}},
      {"no extension",
       {.status = 500,
        .body =
            R"({"error":{"message":"'Worker' object has no attribute 'update_weights_from_ipc'"}})"},
       StatusCode::kFailedPrecondition,
       {"--worker-extension-cls", "no attribute"}},
      {"unauthorized",
       {.status = 401, .body = R"({"error":"Unauthorized"})"},
       StatusCode::kFailedPrecondition,
       {"--api-key-file", "CHECKPOINT_ENGINE_API_KEY", "401"}},
      {"worker failed",
       {.status = 500, .body = "{\"error\":{\"message\":\"shape\\nof layer 3\"}}"},
       StatusCode::kPeerError,
       {"HTTP 500", "shape of layer 3"}},
      {"no text",
       {.status = 502},
       StatusCode::kPeerError,
       {"HTTP 502", "look at the engine's log"}},
      {"page", {.status = 500, .body = "<h1>oops</h1>"}, StatusCode::kPeerError, {"<h1>oops</h1>"}},
      {"bad request",
       {.status = 400, .body = R"({"detail":[{"msg":"field required"}]})"},
       StatusCode::kPeerError,
       {"HTTP 400", "field required"}},
      {"redirect",
       {.status = 307, .headers = "Location: http://elsewhere/x\r\n"},
       StatusCode::kFailedPrecondition,
       {"http://elsewhere/x", "--endpoint"}},
      {"success false",
       {.body = R"({"success":false,"message":"drafter missing"})"},
       StatusCode::kPeerError,
       {"did not succeed", "drafter missing"}},
      {"not JSON", {.body = "<html>"}, StatusCode::kProtocol, {"not JSON", "<html>"}},
      {"reset", {.verb = Verb::kReset}, StatusCode::kPeerLost, {"broke", "look at its log"}},
      {"cut",
       {.body = "{\"results\":[null]}", .verb = Verb::kCut},
       StatusCode::kPeerLost,
       {"broke"}},
      {"garbage", {.verb = Verb::kGarbage}, StatusCode::kPeerLost, {"broke"}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    ScriptedServer server;
    server.script("/collective_rpc", each.answer);
    const Status status = EngineClient(EngineKind::kVllm, server.endpoint())
                              .update_weights(kAddresses, {}, soon(), abort_);
    EXPECT_EQ(status.code(), each.code) << status.message();
    for (const char* text : each.says) EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), HasSubstr(server.endpoint().to_string()));
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST_F(EngineClientTest, LongTextsAreCut) {
  server_.script("/collective_rpc", {.status = 500, .body = std::string(100'000, 'x')});
  EXPECT_LT(update_vllm().message().size(), 800u);
}

TEST_F(EngineClientTest, AnAnswerWithoutEndIsRefused) {
  server_.script("/collective_rpc", {.body = std::string((16u << 20) + 1, ' ')});
  const Status status = update_vllm();
  EXPECT_EQ(status.code(), StatusCode::kProtocol) << status.message();
}

TEST_F(EngineClientTest, AHangEndsAtTheDeadline) {
  server_.script("/collective_rpc", {.verb = Verb::kHang});
  const Status status = update_vllm({}, at_once());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("--timeout"));
}

TEST_F(EngineClientTest, AnAnswerThatTricklesEndsAtTheDeadlineOfTheWhole) {
  server_.script("/collective_rpc", {.body = std::string(1000, ' '), .verb = Verb::kTrickle});
  EXPECT_EQ(update_vllm({}, at_once()).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(EngineClientTest, ASlowAnswerInTimeIsFine) {
  server_.script("/collective_rpc", {.body = "{}", .verb = Verb::kTrickle});
  const Status status = update_vllm();
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST_F(EngineClientTest, AnotherThreadEndsACallThatHangs) {
  server_.script("/collective_rpc", {.verb = Verb::kHang});
  server_.script("/collective_rpc", {.status = 404});
  std::thread other([&] {
    while (server_.requests().empty()) std::this_thread::yield();
    abort_.raise(data_loss("rank 3 failed"));
  });
  const Status status = update_vllm({}, Deadline::after_seconds(100));
  other.join();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "rank 3 failed");
}

TEST_F(EngineClientTest, NoCallIsMadeOnceAborted) {
  abort_.raise(aborted("before"));
  EXPECT_EQ(update_vllm().message(), "before");
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(EngineClientTest, ProxyVariablesAreIgnored) {
  for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) {
    ::setenv(name, "http://127.0.0.1:1", 1);
  }
  server_.script("/collective_rpc", {});
  const Status status = update_vllm();
  for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) ::unsetenv(name);
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(EngineClient, ARefusedConnectionNamesTheAddress) {
  Endpoint gone;
  {
    const ScriptedServer server;
    gone = server.endpoint();
  }
  const Status status = EngineClient(EngineKind::kVllm, gone).update_weights({}, {}, soon(), {});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(gone.to_string()), HasSubstr("refused")));
}

TEST(EngineClient, SpeaksIpv6) {
  ScriptedServer server("::1");
  server.script("/collective_rpc", {});
  const Status status =
      EngineClient(EngineKind::kVllm, server.endpoint()).update_weights({}, {}, soon(), {});
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_THAT(server.requests().at(0).headers,
              HasSubstr(concat("Host: [::1]:", server.endpoint().port)));
}

TEST(EngineClient, SpeaksOverUnixSockets) {
  const std::string path = concat("/tmp/ckpt-engine-client-", ::getpid(), ".sock");
  {
    ScriptedServer server(path);
    server.script("/collective_rpc", {});
    const EngineClient client(EngineKind::kVllm, server.endpoint());
    const Status status = client.update_weights({}, {}, soon(), {});
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  const auto endpoint = unix_endpoint(path);
  const Status gone = EngineClient(EngineKind::kVllm, *endpoint).update_weights({}, {}, soon(), {});
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable);
  EXPECT_THAT(gone.message(), HasSubstr(path));
}

TEST(EngineClient, PutsTheBasePathBeforeEveryCall) {
  ScriptedServer server;
  server.script("/engine/3/ping", {});
  Endpoint endpoint = server.endpoint();
  endpoint.base_path = "/engine/3";
  EXPECT_TRUE(EngineClient(EngineKind::kSglang, endpoint).wait_ready(soon(), {}).is_ok());
}

TEST(EngineClient, WaitsUntilAnEngineIsReady) {
  ScriptedServer server;
  server.script("/health", {.status = 503, .body = "loading"});
  server.script("/health", {.verb = Verb::kReset});
  server.script("/health", {.status = 200});
  const Status status = EngineClient(EngineKind::kVllm, server.endpoint()).wait_ready(soon(), {});
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(server.requests().size(), 3u);
}

TEST(EngineClient, AnSglangThatWaitsForItsFirstWeightsIsReady) {
  ScriptedServer server;
  server.script("/ping", {.status = 503, .body = ""});
  EXPECT_TRUE(EngineClient(EngineKind::kSglang, server.endpoint()).wait_ready(soon(), {}).is_ok());
  server.script("/health", {.status = 503, .body = ""});
  EXPECT_FALSE(
      EngineClient(EngineKind::kVllm, server.endpoint()).wait_ready(at_once(), {}).is_ok());
}

TEST(EngineClient, SaysWhyAnEngineIsNotReady) {
  ScriptedServer server;
  server.script("/health", {.status = 503, .body = R"({"detail":"weights are incomplete"})"});
  const EngineClient client(EngineKind::kVllm, server.endpoint());
  const Status status = client.wait_ready(at_once(), {});
  EXPECT_THAT(status.message(), AllOf(HasSubstr("not ready"), HasSubstr("weights are incomplete")));
}

TEST(EngineClient, DoesNotWaitForAnEngineThatNeedsAnotherSetup) {
  ScriptedServer server;
  server.script("/health", {.status = 401});
  const EngineClient client(EngineKind::kVllm, server.endpoint());
  EXPECT_EQ(client.wait_ready(Deadline::after_seconds(100), {}).code(),
            StatusCode::kFailedPrecondition);
}

TEST(EngineClient, SaysThatSomethingElseListensThere) {
  const ScriptedServer server;
  const EngineClient client(EngineKind::kSglang, server.endpoint());
  EXPECT_THAT(client.wait_ready(soon(), {}).message(),
              AllOf(HasSubstr("/ping"), HasSubstr("--engine")));
}

TEST(EngineClient, DescriptorsBeyondTheLimitOfSelectWork) {
  // The library waits with select(2), which knows the first 1024 descriptors only.
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 1200) GTEST_SKIP() << "this process may open " << limit.rlim_cur << " files";
  std::vector<UniqueFd> used;
  do {
    used.emplace_back(::dup(STDERR_FILENO));
  } while (used.back().get() < 1100);
  ScriptedServer server;
  server.script("/collective_rpc", {.verb = Verb::kHang});
  const EngineClient client(EngineKind::kVllm, server.endpoint());
  EXPECT_EQ(client.update_weights({}, {}, at_once(), {}).code(), StatusCode::kDeadlineExceeded);
  ScriptedServer other;
  other.script("/health", {});
  EXPECT_TRUE(EngineClient(EngineKind::kVllm, other.endpoint()).wait_ready(soon(), {}).is_ok());
}

TEST(ErrorText, IsTakenFromWhereServersPutIt) {
  EXPECT_EQ(error_text(R"({"error":{"message":"a","type":"b"}})"), "a");
  EXPECT_EQ(error_text(R"({"error":"a"})"), "a");
  EXPECT_EQ(error_text(R"({"success":false,"message":"a"})"), "a");
  EXPECT_EQ(error_text(R"({"detail":"a"})"), "a");
  EXPECT_EQ(error_text(R"("a")"), "a");
  EXPECT_EQ(error_text("  a\r\n\tb "), "a b");
  EXPECT_EQ(error_text(""), "");
  EXPECT_EQ(error_text("{\"error\":\"\xff\"}"), "{\"error\":\"\xff\"}");
}

}  // namespace
}  // namespace ckpt
