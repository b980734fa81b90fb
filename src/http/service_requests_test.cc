#include "http/service_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckpt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(CheckpointName, IsDecodedAndChecked) {
  EXPECT_EQ(*checkpoint_name("iter-7"), "iter-7");
  EXPECT_EQ(*checkpoint_name("a%2Fb%20%C3%A9"), "a/b \xC3\xA9");
  EXPECT_EQ(*checkpoint_name(std::string(255, 'x')), std::string(255, 'x'));
  for (const std::string& bad :
       {std::string(), std::string(256, 'x'), std::string("%"), std::string("a%2"),
        std::string("%zz"), std::string("%+1"), std::string("%00"), std::string("a%0Ab"),
        std::string("%FF"), std::string("%C3"), std::string("%7f")}) {
    EXPECT_EQ(checkpoint_name(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(FilesRequest, IsAListOfPaths) {
  EXPECT_THAT(parse_files_request(R"({"files":["/a","/b"]})")->files, ElementsAre("/a", "/b"));
  EXPECT_TRUE(parse_files_request(R"({"files":[]})")->files.empty());
  for (const char* bad :
       {"", "[]", "{}", R"({"files":"/a"})", R"({"files":[1]})", R"({"files":[""]})",
        R"({"files":["a\u0000b"]})", R"({"files":[],"file":1})"}) {
    EXPECT_EQ(parse_files_request(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(UpdateRequest, HasTheFieldsDefaults) {
  for (
      const char* body :
      {"{}",
       R"({"ranks":[],"update_url":null,"inference_group_ranks":[],"timeout":300.0,"uds":null})"}) {
    const auto request = parse_update_request(body, 4);
    ASSERT_TRUE(request.is_ok()) << request.status().message();
    EXPECT_TRUE(request->ranks.empty() && request->group.empty());
    EXPECT_FALSE(request->target.has_value());
    EXPECT_EQ(request->timeout_seconds, 300);
  }
}

TEST(UpdateRequest, IsReadWhole) {
  const auto request = parse_update_request(
      R"({"ranks":[3,2],"update_url":"http://h:1/collective_rpc","inference_group_ranks":[2,3],
          "timeout":7,"weight_version":"v7","reset_prefix_cache":true,"pause":"keep"})",
      4);
  ASSERT_TRUE(request.is_ok()) << request.status().message();
  EXPECT_THAT(request->ranks, ElementsAre(2, 3));
  EXPECT_THAT(request->group, ElementsAre(2, 3));
  EXPECT_EQ(request->target->endpoint.to_string(), "http://h:1");
  EXPECT_EQ(request->timeout_seconds, 7);
  EXPECT_EQ(request->options.weight_version, "v7");
  EXPECT_TRUE(request->options.reset_prefix_cache);
  EXPECT_EQ(request->options.pause_mode, "keep");
}

TEST(UpdateRequest, RefusesWhatItDoesNotUnderstand) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "JSON object"},
      {"[]", "JSON object"},
      {R"({"rank":[0]})", "unknown member \"rank\""},
      {R"({"ranks":0})", "'ranks'"},
      {R"({"ranks":[0.5]})", "'ranks'"},
      {R"({"ranks":[4]})", "ranks 0 to 3, not 4"},
      {R"({"ranks":[-1]})", "not -1"},
      {R"({"ranks":[1,1]})", "twice"},
      {R"({"timeout":0})", "'timeout'"},
      {R"({"timeout":1e9})", "'timeout'"},
      {R"({"timeout":"7"})", "'timeout'"},
      {R"({"update_url":7})", "'update_url'"},
      {R"({"update_url":"ftp://x/y"})", "http://"},
      {R"({"update_url":"http://h:1?a=b c"})", "%20"},
      {R"({"update_url":"http://h:1/a\r\nX: y"})", "control character"},
      {R"({"ranks":[0],"inference_group_ranks":[1]})", "not one of 'ranks'"},
      {R"({"pause":"now"})", "'pause'"},
      {R"({"reset_prefix_cache":1})", "'reset_prefix_cache'"},
  };
  for (const auto& [body, says] : cases) {
    const auto request = parse_update_request(body, 4);
    EXPECT_EQ(request.status().code(), StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(request.status().message(), HasSubstr(says)) << body;
  }
}

TEST(UpdateTarget, TheUrlSaysWhoseCallItIs) {
  const auto vllm = parse_update_target("http://h:1/a/collective_rpc", "");
  EXPECT_EQ(vllm->kind, EngineKind::kVllm);
  EXPECT_EQ(vllm->endpoint.to_string(), "http://h:1/a");
  EXPECT_EQ(vllm->path, "");
  EXPECT_EQ(parse_update_target("http://h:1/update_weights_from_ipc", "")->kind,
            EngineKind::kSglang);
  EXPECT_EQ(parse_update_target("http://h:1/update_weights", "")->kind, EngineKind::kVllmNative);
  const auto other = parse_update_target("http://h:1/my/own", "/run/e.sock");
  EXPECT_EQ(other->kind, EngineKind::kVllm);
  EXPECT_EQ(other->endpoint.to_string(), "unix:/run/e.sock");
  EXPECT_EQ(other->path, "/my/own");
  EXPECT_EQ(parse_update_target("/update_weights_from_ipc", "/run/e.sock")->kind,
            EngineKind::kSglang);
  EXPECT_FALSE(parse_update_target("/update_weights_from_ipc", "").is_ok());
}

TEST(UpdateTarget, AUrlIsKeptAsItIs) {
  const struct {
    const char *url, *endpoint, *path, *query;
    EngineKind kind;
  } cases[] = {
      {"http://h:1", "http://h:1", "/", "", EngineKind::kVllm},
      {"http://h:1/", "http://h:1", "/", "", EngineKind::kVllm},
      {"http://h:1?a=b", "http://h:1", "/", "?a=b", EngineKind::kVllm},
      {"HTTP://h:1/my/own/", "http://h:1", "/my/own/", "", EngineKind::kVllm},
      {"Http://h/collective_rpc?a=/b", "http://h:80", "", "?a=/b", EngineKind::kVllm},
      {"http://h:1/p/update_weights_from_ipc?a#c", "http://h:1/p", "", "?a", EngineKind::kSglang},
      {"http://h:1/update_weights?", "http://h:1", "", "?", EngineKind::kVllmNative},
  };
  for (const auto& each : cases) {
    const auto target = parse_update_target(each.url, "");
    ASSERT_TRUE(target.is_ok()) << each.url << ": " << target.status().message();
    EXPECT_EQ(target->endpoint.to_string(), each.endpoint) << each.url;
    EXPECT_EQ(target->path, each.path) << each.url;
    EXPECT_EQ(target->query, each.query) << each.url;
    EXPECT_EQ(target->kind, each.kind) << each.url;
  }
  EXPECT_EQ(parse_update_target("/own?a=b", "/run/e.sock")->path, "/own");
  EXPECT_EQ(parse_update_target("/own?a=b", "/run/e.sock")->query, "?a=b");
}

}  // namespace
}  // namespace ckpt
