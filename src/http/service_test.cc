#include "http/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/strings.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "http/scripted_server.h"
#include "http/service_routes.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class FakeContext : public EngineCallContext {
 public:
  int rank() const override { return 0; }
  double remaining_seconds() const override { return 10; }
  bool cancelled() const override { return false; }
  void on_cancel(std::function<void()>) override {}
};

/// Rank 0 of two in the place of the real thing; rank 1 always asks for the same.
class FakeServer : public ParameterServer {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  Status register_checkpoint(const std::string& name, const Registration& part) override {
    if (name == "taken") return already_exists("checkpoint \"taken\" is registered already");
    registered[name] = part;
    return Status::ok();
  }
  Status unregister_checkpoint(const std::string& name, bool) override {
    return registered.erase(name) == 1 ? Status::ok() : not_found("is not registered");
  }
  Status gather_metas(const std::string&) override { return gather_result; }
  Result<std::string> export_metas() const override {
    if (registered.empty()) return failed_precondition("no metas: call gather_metas first");
    return std::string(
        R"({"format":"checkpoint-engine metas","version":1,"checkpoint":"step 1","layouts":[],"ranks":[]})");
  }
  Status load_metas(const std::string& text) override {
    return text == "{}" ? invalid_argument("'format' is missing") : Status::ok();
  }
  Status offer_loaded() override { return Status::ok(); }
  std::string checkpoint_name() const override { return "of another job"; }
  Result<std::unique_ptr<PreparedUpdate>> prepare(const std::string&,
                                                  const UpdateOptions& options) override {
    last = options;
    return std::make_unique<PreparedUpdate>();
  }
  Result<UpdateReport> commit(std::unique_ptr<PreparedUpdate>, const EngineCall& call) override {
    {
      std::unique_lock lock(mutex_);
      updating_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !held_; });
      updating_ = false;
    }
    last.progress(5, 10);
    FakeContext context;
    CKPT_RETURN_IF_ERROR(call({{"CPU-0", "ipc://@0"}, {"CPU-1", "ipc://@1"}}, context));
    UpdateReport report;
    report.loaded_bytes = report.total_bytes = 10;
    return report;
  }
  void abort(std::unique_ptr<PreparedUpdate>, const Status&) override {}
  void cancel(const Status& cause) override { cancelled = cause; }
  Status barrier(double) override { return Status::ok(); }
  Result<std::vector<std::string>> all_gather(const std::string& mine, double) override {
    offered = mine;
    return std::vector<std::string>{mine, other_offer.empty() ? mine : other_offer};
  }

  /// Updates wait inside until release().
  void hold() { held_ = true; }
  void wait_until_updating() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return updating_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

  std::map<std::string, Registration> registered;
  Status gather_result;
  std::string other_offer, offered;
  Status cancelled;
  UpdateOptions last;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, updating_ = false;
};

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(write_synthetic_checkpoint(
                    folder_ + "/in", {*make_tensor_info("w", DType::kF32, {3, 5})}, {.seed = 5})
                    .is_ok());
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/in")) {
      if (entry.path().extension() == ".safetensors") file_ = entry.path().string();
    }
  }
  ~ServiceTest() override { std::filesystem::remove_all(folder_); }

  ServerAnswer ask(const std::string& method, const std::string& path, const json& body = {}) {
    return routes_.handle({method, path, body.is_null() ? "" : body.dump()});
  }
  json state() { return json::parse(ask("GET", "/v1/status").body); }
  std::string message(const ServerAnswer& answer) {
    const json body = json::parse(answer.body);
    EXPECT_EQ(body["error"]["code"], answer.status);
    return body["error"]["message"];
  }

  const std::string folder_ = concat("/tmp/ckpt-service-", ::getpid());
  std::string file_;
  FakeServer server_;
  Service service_{server_, {}};
  ServiceRoutes routes_{service_};
};

TEST_F(ServiceTest, TheWholeWay) {
  ScriptedServer engine;
  engine.script("/collective_rpc", {.body = R"({"results":[null]})"});
  EXPECT_EQ(ask("GET", "/v1/healthz").status, 200);
  auto done = ask("POST", "/v1/checkpoints/step%201/files", {{"files", {file_}}});
  EXPECT_EQ(done.status, 200) << done.body;
  EXPECT_EQ(done.body, "");
  EXPECT_EQ(server_.registered.at("step 1").files.at(0).info.name, "w");
  EXPECT_EQ(state()["checkpoints"], json::parse(R"([{"name":"step 1","tensors":1,"bytes":60}])"));
  EXPECT_EQ(state()["metas"], nullptr);
  EXPECT_EQ(ask("POST", "/v1/checkpoints/step%201/gather-metas").status, 200);
  EXPECT_EQ(state()["metas"]["checkpoint"], "step 1");
  done = ask("POST", "/v1/checkpoints/step%201/update",
             {{"update_url", engine.endpoint().to_string() + "/collective_rpc"}});
  EXPECT_EQ(done.status, 200) << done.body;
  EXPECT_EQ(json::parse(engine.requests().at(0).body)["args"][0],
            (json{{"CPU-0", "ipc://@0"}, {"CPU-1", "ipc://@1"}}));
  EXPECT_TRUE(server_.last.engine_answer_means_done);
  EXPECT_EQ(state()["last_update"]["loaded_bytes"], 10);
  EXPECT_EQ(state()["last_update"]["error"], nullptr);
  EXPECT_EQ(ask("GET", "/v1/metas").body, "{}") << "of no rank";
  EXPECT_EQ(ask("DELETE", "/v1/checkpoints/step%201").status, 200);
  EXPECT_TRUE(state()["checkpoints"].empty());
  const std::string metrics = ask("GET", "/metrics").body;
  EXPECT_THAT(metrics,
              AllOf(HasSubstr("checkpoint_engine_updates_total{outcome=\"ok\"} 1"),
                    HasSubstr("checkpoint_engine_loaded_bytes_total 10"),
                    HasSubstr("route=\"/v1/checkpoints/{name}/update\",status=\"200\"} 1")));
}

TEST_F(ServiceTest, FreeingWhatIsNotThereIsNoMistake) {
  const auto answer = ask("DELETE", "/v1/checkpoints/nobody");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.body.empty());
}

TEST_F(ServiceTest, MistakesOfTheCallerAre4xx) {
  struct Case {
    int status;
    const char *method, *path, *body, *says;
  };
  const Case cases[] = {
      {400, "POST", "/v1/checkpoints/a/files", "{", "JSON"},
      {404, "POST", "/v1/checkpoints/a/files", R"({"files":["/no/such.safetensors"]})", "/no/such"},
      {400, "POST", "/v1/checkpoints/%/files", R"({"files":[]})", "%"},
      {409, "POST", "/v1/checkpoints/taken/files", R"({"files":[]})", "registered already"},
      {409, "POST", "/v1/checkpoints/a/update", "{}", "gather-metas"},
      {400, "POST", "/v1/checkpoints/a/update", R"({"ranks":[2]})", "ranks 0 to 1"},
      {400, "POST", "/v1/metas", "{}", "format"},
      {404, "GET", "/v1/nothing", "", "no such call"},
      {404, "GET", "/", "", "no such call"},
      {404, "POST", "/v1/checkpoints/a/other", "", "no such call"},
      {404, "POST", "/v1/checkpoints/a/files/b", "", "no such call"},
      {405, "GET", "/v1/checkpoints/a", "", "DELETE"},
      {405, "POST", "/v1/status", "", "GET"},
  };
  for (const Case& each : cases) {
    const auto answer = routes_.handle({each.method, each.path, each.body});
    EXPECT_EQ(answer.status, each.status) << each.method << " " << each.path << " " << answer.body;
    EXPECT_THAT(message(answer), HasSubstr(each.says)) << each.path;
  }
}

TEST_F(ServiceTest, FilesOutsideTheAllowedFoldersAreRefused) {
  std::filesystem::create_directories(folder_ + "/allowed");
  std::filesystem::create_symlink(file_, folder_ + "/allowed/link.safetensors");
  std::filesystem::copy(file_, folder_ + "/allowed/own.safetensors");
  std::filesystem::create_directories(folder_ + "/allowed-not");
  std::filesystem::copy(file_, folder_ + "/allowed-not/a.safetensors");
  Service guarded(server_, {.allowed_folders = {folder_ + "/allowed"}});
  ServiceRoutes routes(guarded);
  const auto status = [&](const std::string& path) {
    return routes.handle({"POST", "/v1/checkpoints/a/files", json{{"files", {path}}}.dump()})
        .status;
  };
  EXPECT_EQ(status(file_), 403);
  EXPECT_EQ(status(folder_ + "/allowed/link.safetensors"), 403);
  EXPECT_EQ(status(folder_ + "/allowed-not/a.safetensors"), 403);
  EXPECT_EQ(status(folder_ + "/allowed/../in/" + std::filesystem::path(file_).filename().string()),
            403);
  EXPECT_EQ(status(folder_ + "/allowed/missing.safetensors"), 403);
  EXPECT_TRUE(server_.registered.empty());
  EXPECT_EQ(status(folder_ + "/allowed/own.safetensors"), 200);
}

class UpdatingServiceTest : public ServiceTest {
 protected:
  UpdatingServiceTest() { EXPECT_EQ(ask("POST", "/v1/checkpoints/a/gather-metas").status, 200); }
  ServerAnswer update(const json& body = json::object()) {
    return ask("POST", "/v1/checkpoints/a/update", body);
  }
};

TEST_F(UpdatingServiceTest, AnswersWhileAnUpdateRunsAndRefusesASecond) {
  server_.hold();
  std::thread first([&] { EXPECT_EQ(update().status, 200); });
  server_.wait_until_updating();
  EXPECT_EQ(ask("GET", "/v1/healthz").status, 200);
  EXPECT_EQ(state()["update"]["checkpoint"], "a");
  EXPECT_EQ(state()["operation"], "update \"a\"");
  const auto second = update();
  EXPECT_EQ(second.status, 409);
  EXPECT_THAT(message(second), HasSubstr("update \"a\""));
  server_.release();
  first.join();
  EXPECT_EQ(state()["update"], nullptr);
  EXPECT_FALSE(server_.last.engine_answer_means_done) << "nobody is called";
}

TEST_F(UpdatingServiceTest, AFailedEngineIsA500WhateverItSays) {
  ScriptedServer engine;
  engine.script("/update_weights_from_ipc", {.status = 404});
  const auto failed =
      update({{"update_url", engine.endpoint().to_string() + "/update_weights_from_ipc"}});
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(message(failed), HasSubstr("SGLang"));
  EXPECT_THAT(state()["last_update"]["error"].get<std::string>(), HasSubstr("SGLang"));
  EXPECT_EQ(update().status, 200) << "the next one works";
}

TEST_F(UpdatingServiceTest, RanksThatWereAskedForOtherThingsAreToldAtOnce) {
  server_.other_offer = "0:a:0 ";
  const auto refused = update();
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(message(refused), HasSubstr("different"));
}

TEST_F(ServiceTest, ARankWithoutMetasFailsTheUpdateEverywhere) {
  const auto refused = ask("POST", "/v1/checkpoints/a/update", json::object());
  EXPECT_EQ(refused.status, 409);
  ASSERT_EQ(ask("POST", "/v1/checkpoints/a/gather-metas").status, 200);
  server_.other_offer = server_.offered;  // now that rank is the other one
  const auto told = ask("POST", "/v1/checkpoints/a/update", json::object());
  EXPECT_EQ(told.status, 409);
  EXPECT_EQ(message(told), "rank 1: " + message(refused));
}

TEST_F(UpdatingServiceTest, TheRankThatCallsKnowsTheInstancesSize) {
  server_.other_offer = "1:a:";
  EXPECT_EQ(update().status, 200);
  EXPECT_EQ(server_.last.instance_size, 1);
  server_.other_offer = "0:a:";
  EXPECT_EQ(update({{"inference_group_ranks", {0, 1}}}).status, 200);
  EXPECT_EQ(server_.last.instance_size, 2);
  server_.other_offer = "1:a:";
  EXPECT_EQ(update({{"inference_group_ranks", {0, 1}}}).status, 200);
  EXPECT_EQ(server_.last.instance_size, 2) << "unequal ones count as one";
}

TEST_F(UpdatingServiceTest, MetasOfAnotherJobAreUpdatedFromByTheirName) {
  EXPECT_EQ(routes_.handle({"POST", "/v1/metas", "{\"version\":1}"}).status, 200);
  EXPECT_EQ(state()["metas"], (json{{"checkpoint", "of another job"}, {"loaded", true}}));
  EXPECT_EQ(update().status, 409);
  EXPECT_EQ(ask("POST", "/v1/checkpoints/of%20another%20job/update", json::object()).status, 200);
}

TEST_F(UpdatingServiceTest, TheEnginesKeyIsForTheEnginesAlone) {
  ScriptedServer engine;
  engine.script("/collective_rpc", {.body = R"({"results":[null]})"});
  Endpoint other = engine.endpoint();
  other.host = "localhost";
  const auto sent_by = [&](ServiceOptions options) {
    options.engine_token = "secret";
    Service service(server_, options);
    ServiceRoutes routes(service);
    EXPECT_EQ(routes.handle({"POST", "/v1/checkpoints/a/gather-metas", ""}).status, 200);
    const json body = {{"update_url", engine.endpoint().to_string() + "/collective_rpc"}};
    EXPECT_EQ(routes.handle({"POST", "/v1/checkpoints/a/update", body.dump()}).status, 200);
    return engine.requests().back().headers;
  };
  const auto has_key = HasSubstr("Bearer secret");
  EXPECT_THAT(sent_by({}), has_key) << "it is on this machine";
  EXPECT_THAT(sent_by({.engine_endpoints = {engine.endpoint()}}), has_key);
  EXPECT_THAT(sent_by({.engine_endpoints = {other}}), testing::Not(has_key));
}

TEST_F(UpdatingServiceTest, StoppingEndsTheEngineCall) {
  ScriptedServer engine;
  engine.script("/own", {.verb = ScriptedAnswer::Verb::kHang});
  std::thread caller([&] {
    const auto ended = update({{"update_url", engine.endpoint().to_string() + "/own"}});
    EXPECT_EQ(ended.status, 500);
    EXPECT_THAT(message(ended), HasSubstr("told to stop"));
  });
  while (engine.requests().empty()) std::this_thread::yield();
  service_.stop(aborted("told to stop"));
  caller.join();
  EXPECT_EQ(server_.cancelled.message(), "told to stop") << "other ranks are not waited for";
  EXPECT_EQ(update().status, 503);
  EXPECT_EQ(ask("GET", "/v1/healthz").status, 200);
}

TEST(ServiceOpenapi, SaysWhatEveryCallMayAnswer) {
  const json description = json::parse(service_openapi());
  for (const auto& [path, operations] : description["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      if (method == "parameters") continue;
      std::set<std::string> answers;
      for (const auto& [status, response] : operation["responses"].items()) answers.insert(status);
      // Whatever throws is a 500, and whoever comes when too many wait gets a 503.
      std::set<std::string> wanted = {"200", "500", "503"};
      if (path != "/v1/healthz") wanted.insert("401");
      if (method == "post" || method == "delete") wanted.insert({"400", "413"});
      if (path.ends_with("/update") || path.ends_with("/files")) wanted.insert("409");
      if (path == "/v1/checkpoints/{name}" || (path == "/v1/metas" && method == "post")) {
        wanted.insert("409");
      }
      if (path.ends_with("/files")) wanted.insert({"403", "404"});
      EXPECT_EQ(answers, wanted) << method << " " << path;
    }
  }
  EXPECT_THAT(description["info"]["description"].get<std::string>(),
              AllOf(HasSubstr("404"), HasSubstr("405")));
}

TEST(ServiceOpenapi, DescribesEveryRouteAndNoOther) {
  const json description = json::parse(service_openapi());
  FakeServer server;
  Service service(server, {});
  ServiceRoutes routes(service);
  for (const auto& [path, operations] : description["paths"].items()) {
    std::string real = path;
    if (const auto at = real.find("{name}"); at != std::string::npos) real.replace(at, 6, "x");
    for (const char* method : {"get", "post", "put", "delete", "patch"}) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
      const auto answer = routes.handle({upper, real, "{}"});
      if (!operations.contains(method)) {
        EXPECT_EQ(answer.status, 405) << upper << " " << path;
        continue;
      }
      EXPECT_NE(answer.status, 405) << upper << " " << path;
      EXPECT_TRUE(operations[method]["responses"].contains(std::to_string(answer.status)))
          << upper << " " << path << ": " << answer.status << " is not described";
    }
  }
}

}  // namespace
}  // namespace ckpt
