#include "http/receive_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "http/engine_client.h"
#include "http/held_weights.h"
#include "http/http_client.h"

namespace ckpt {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TensorInfo tensor(std::string name, std::vector<std::int64_t> shape, DType dtype = DType::kF32) {
  return *make_tensor_info(std::move(name), dtype, std::move(shape));
}

Deadline soon() { return Deadline::after_seconds(10); }

/// In the place of update_weights: gives each worker what the test says, by address.
class FakeRank {
 public:
  struct Content {
    std::vector<TensorInfo> tensors;
    std::uint64_t seed = 0;
    Status end;  ///< what the update ends with after the tensors
  };

  void set(const std::string& address, Content content) { contents_[address] = std::move(content); }
  UpdateWeights function() {
    return [this](const std::string& address, Loader& loader, const ReceiverOptions&) {
      return run(address, loader);
    };
  }
  /// Updates wait inside until release().
  void hold() { held_ = true; }
  void wait_until_running() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

 private:
  Result<ReceiveReport> run(const std::string& address, Loader& loader) {
    {
      std::unique_lock lock(mutex_);
      running_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return !held_; });
    }
    const auto found = contents_.find(address);
    if (found == contents_.end()) return unavailable("nobody is at " + address);
    ReceiveReport report;
    for (const auto& each : found->second.tensors) {
      CKPT_ASSIGN_OR_RETURN(const auto to, loader.destination(each));
      fill_synthetic(to, found->second.seed, each, 0);
      report.tensors += 1;
      report.bytes += each.bytes;
    }
    CKPT_RETURN_IF_ERROR(found->second.end);
    return report;
  }

  std::map<std::string, Content> contents_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, running_ = false;
};

const std::vector<TensorInfo> kModel = {tensor("model.embed.weight", {64, 8}),
                                        tensor("model.layers.0.w", {3, 5}),
                                        tensor("model.norm.weight", {}), tensor("empty", {0, 4})};

class ReceiveServerTest : public testing::Test {
 protected:
  ReceiveServerTest()
      : instance_({{"CPU-0", "CPU-1"}, {}, rank_.function()}),
        server_(*ReceiveServer::start({}, instance_)),
        vllm_(EngineKind::kVllm, server_->endpoint()),
        sglang_(EngineKind::kSglang, server_->endpoint()) {
    rank_.set("good", {kModel, 1, {}});
  }

  Status update(const std::string& first = "good", const std::string& second = "good") {
    return vllm_.update_weights({{"CPU-0", first}, {"CPU-1", second}}, {}, soon(), never_);
  }
  HttpResponse request(const std::string& method, const std::string& path,
                       const std::string& body = {}) {
    auto response = http_request(server_->endpoint(), {method, path, body, {}}, soon(), never_);
    EXPECT_TRUE(response.is_ok()) << response.status().message();
    return response ? *response : HttpResponse();
  }
  int health() { return request("GET", "/health").status; }

  FakeRank rank_;
  ReceivingInstance instance_;
  std::unique_ptr<ReceiveServer> server_;
  EngineClient vllm_, sglang_;
  AbortSignal never_;
};

TEST_F(ReceiveServerTest, IsHealthyOnceItHasWeights) {
  const auto before = request("GET", "/health");
  EXPECT_EQ(before.status, 503);
  EXPECT_THAT(before.body, HasSubstr("no weights"));
  EXPECT_EQ(request("GET", "/ping").status, 200);
  EXPECT_TRUE(vllm_.wait_ready(soon(), never_).is_ok()) << "it must be ready for an update";
  ASSERT_TRUE(update().is_ok());
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, AnswersInTheFormOfEachEngine) {
  const json map = {{"CPU-0", "good"}, {"CPU-1", "good"}};
  const json rpc = {
      {"method", "update_weights_from_ipc"}, {"args", {map}}, {"kwargs", json::object()}};
  auto response = request("POST", "/collective_rpc", rpc.dump());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body), (json{{"results", {nullptr, nullptr}}}));
  response = request("POST", "/update_weights_from_ipc", json{{"zmq_handles", map}}.dump());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(response.body), (json{{"success", true}, {"message", "ok"}}));
}

TEST_F(ReceiveServerTest, RefusesBodiesThatItDoesNotUnderstand) {
  for (
      const char* body :
      {"", "{", "[]", "{}", R"({"method":3})", R"({"method":"update_weights_from_ipc"})",
       R"({"method":"update_weights_from_ipc","args":[]})",
       R"({"method":"update_weights_from_ipc","args":[3]})",
       R"({"method":"update_weights_from_ipc","args":[{"CPU-0":1,"CPU-1":2}]})",
       R"({"method":"update_weights_from_ipc","args":[{"CPU-0":"good"}]})",
       R"({"method":"update_weights_from_ipc","args":[{"CPU-0":"good","CPU-1":"good","CPU-2":"x"}]})"}) {
    const auto response = request("POST", "/collective_rpc", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_FALSE(json::parse(response.body)["error"]["message"].get<std::string>().empty());
  }
  EXPECT_EQ(request("POST", "/update_weights_from_ipc", "{}").status, 400);
  EXPECT_EQ(request("POST", "/collective_rpc", R"({"method":"sleep","args":[]})").status, 500);
  EXPECT_EQ(request("GET", "/nothing").status, 404);
}

TEST_F(ReceiveServerTest, AFailedUpdateNamesTheWorkerAndLeavesItUnhealthy) {
  ASSERT_TRUE(update().is_ok());
  rank_.set("bad", {kModel, 2, data_loss("digest of tensor \"x\" is wrong")});
  const Status failed = update("good", "bad");
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("worker CPU-1"), HasSubstr("tensor \"x\"")));
  const auto unhealthy = request("GET", "/health");
  EXPECT_EQ(unhealthy.status, 503);
  EXPECT_THAT(unhealthy.body, HasSubstr("model.embed.weight"));
  EXPECT_TRUE(vllm_.wait_ready(soon(), never_).is_ok());
  ASSERT_TRUE(update().is_ok());
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, AFailureBeforeAnythingWasWrittenLeavesTheWeightsAlone) {
  ASSERT_TRUE(update().is_ok());
  EXPECT_FALSE(update("nowhere", "nowhere").is_ok());
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, AnUpdateThatOmitsTornTensorsDoesNotHeal) {
  ASSERT_TRUE(update().is_ok());
  rank_.set("bad", {kModel, 2, aborted("gone")});
  ASSERT_FALSE(update("bad", "bad").is_ok());
  rank_.set("part", {{kModel[1]}, 1, {}});
  ASSERT_TRUE(update("part", "part").is_ok());
  EXPECT_EQ(health(), 503);
}

TEST_F(ReceiveServerTest, TensorsOfAFailedFirstUpdateAreDropped) {
  rank_.set("bad", {kModel, 2, aborted("gone")});
  ASSERT_FALSE(update("bad", "bad").is_ok());
  EXPECT_EQ(health(), 503);
  ASSERT_TRUE(update().is_ok());
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, SglangIsToldTheReason) {
  const Status failed =
      sglang_.update_weights({{"CPU-0", "nowhere"}, {"CPU-1", "nowhere"}}, {}, soon(), never_);
  EXPECT_THAT(failed.message(), HasSubstr("nobody is at nowhere"));
}

TEST_F(ReceiveServerTest, ATensorThatChangesIsRefusedByName) {
  ASSERT_TRUE(update().is_ok());
  rank_.set("other", {{tensor("model.layers.0.w", {5, 3})}, 1, {}});
  EXPECT_THAT(
      update("other", "other").message(),
      AllOf(HasSubstr("model.layers.0.w"), HasSubstr("F32 [3, 5]"), HasSubstr("F32 [5, 3]")));
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, LaterUpdatesWriteInPlace) {
  const auto places = [&] {
    std::vector<const std::byte*> all;
    EXPECT_TRUE(instance_
                    .with_memory([&](const auto& workers) {
                      for (const auto* worker : workers) {
                        for (const auto& held : worker->tensors()) all.push_back(held.bytes.data());
                      }
                      return Status::ok();
                    })
                    .is_ok());
    return all;
  };
  ASSERT_TRUE(update().is_ok());
  const auto before = places();
  ASSERT_EQ(before.size(), 8u);
  ASSERT_TRUE(update().is_ok());
  EXPECT_EQ(places(), before);
}

TEST_F(ReceiveServerTest, AnswersHealthAndRefusesAnotherUpdateWhileOneRuns) {
  rank_.hold();
  std::thread first([&] { EXPECT_TRUE(update().is_ok()); });
  rank_.wait_until_running();
  EXPECT_EQ(health(), 503);
  const json map = {{"CPU-0", "good"}, {"CPU-1", "good"}};
  const json rpc = {{"method", "update_weights_from_ipc"}, {"args", {map}}};
  EXPECT_EQ(request("POST", "/collective_rpc", rpc.dump()).status, 409);
  rank_.release();
  first.join();
  EXPECT_EQ(health(), 200);
}

TEST_F(ReceiveServerTest, StopWaitsUntilTheUpdateIsAnswered) {
  rank_.hold();
  std::thread client([&] { EXPECT_TRUE(update().is_ok()); });
  rank_.wait_until_running();
  std::thread stopper([&] { server_->stop(); });
  rank_.release();
  stopper.join();
  client.join();
  server_->stop();
}

TEST_F(ReceiveServerTest, ATakenPortIsRefused) {
  const auto& taken = server_->endpoint();
  const auto second = ReceiveServer::start({.host = taken.host, .port = taken.port}, instance_);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(concat(taken.port)));
}

TEST_F(ReceiveServerTest, ReplacesAStaleSocketAndNoneThatIsServed) {
  const std::string path = concat("/tmp/ckpt-receive-", ::getpid(), ".sock");
  std::filesystem::create_directory(path + ".d");
  EXPECT_EQ(ReceiveServer::start({.socket_path = path + ".d"}, instance_).status().code(),
            StatusCode::kAlreadyExists);
  std::filesystem::remove(path + ".d");
  auto first = ReceiveServer::start({.socket_path = path}, instance_);
  ASSERT_TRUE(first.is_ok()) << first.status().message();
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(ReceiveServer::start({.socket_path = path}, instance_).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(::link(path.c_str(), (path + ".old").c_str()), 0);
  (*first)->stop();
  EXPECT_NE(::stat(path.c_str(), &info), 0) << "stop() removes the socket";
  ASSERT_EQ(::rename((path + ".old").c_str(), path.c_str()), 0);
  auto second = ReceiveServer::start({.socket_path = path}, instance_);
  ASSERT_TRUE(second.is_ok()) << second.status().message();
  EXPECT_TRUE(EngineClient(EngineKind::kVllm, (*second)->endpoint())
                  .update_weights({{"CPU-0", "good"}, {"CPU-1", "good"}}, {}, soon(), never_)
                  .is_ok());
}

class HeldWeightsTest : public testing::Test {
 protected:
  HeldWeightsTest() {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(write_synthetic_checkpoint(folder_ + "/in", kModel, {.seed = 5, .shard_bytes = 512})
                    .is_ok());
    load(5);
  }
  ~HeldWeightsTest() override { std::filesystem::remove_all(folder_); }

  void load(std::uint64_t seed, const std::vector<TensorInfo>& tensors = kModel) {
    memory_.begin_update();
    for (const auto& each : tensors) fill_synthetic(*memory_.destination(each), seed, each, 0);
    memory_.end_update(true);
  }
  Status compare(const std::string& name) {
    const auto files = scan_checkpoint(folder_ + name);
    EXPECT_TRUE(files.is_ok()) << files.status().message();
    return compare_with_checkpoint(memory_, *files, threads_);
  }

  const std::string folder_ = concat("/tmp/ckpt-held-weights-", ::getpid());
  WorkerMemory memory_;
  ThreadPool threads_{2};
};

TEST_F(HeldWeightsTest, WhatIsWrittenIsWhatIsHeld) {
  EXPECT_TRUE(compare("/in").is_ok());
  ASSERT_TRUE(write_held_weights(memory_, folder_ + "/a/out").is_ok());
  EXPECT_TRUE(compare("/a/out").is_ok());
  load(6);
  ASSERT_TRUE(write_held_weights(memory_, folder_ + "/a/out").is_ok());
  EXPECT_TRUE(compare("/a/out").is_ok());
}

TEST_F(HeldWeightsTest, EveryDifferenceIsFoundAndNamed) {
  std::byte& last = memory_.find("model.embed.weight")->bytes.back();
  last ^= std::byte{1};
  EXPECT_THAT(compare("/in").message(),
              AllOf(HasSubstr("\"model.embed.weight\""), HasSubstr("byte 2047 of 2048")));
  last ^= std::byte{1};
  EXPECT_TRUE(compare("/in").is_ok());
  load(5, {tensor("more", {1})});
  EXPECT_THAT(compare("/in").message(), AllOf(HasSubstr("\"more\""), HasSubstr("not in")));
}

TEST_F(HeldWeightsTest, AMissingTensorIsFound) {
  WorkerMemory part;
  part.begin_update();
  for (std::size_t i = 1; i < kModel.size(); ++i) {
    fill_synthetic(*part.destination(kModel[i]), 5, kModel[i], 0);
  }
  part.end_update(true);
  const auto files = scan_checkpoint(folder_ + "/in");
  EXPECT_THAT(compare_with_checkpoint(part, *files, threads_).message(),
              AllOf(HasSubstr("\"model.embed.weight\""), HasSubstr("not held")));
}

}  // namespace
}  // namespace ckpt
