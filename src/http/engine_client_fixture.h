// What the tests of the engines' client share: a scripted engine, and calls to it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "http/engine_client.h"
#include "http/scripted_server.h"

namespace ckpt {

inline const std::map<std::string, std::string> kAddresses = {{"CPU-0", "ipc://@a.v2.sock"},
                                                              {"CPU-1", "ipc://@b.v2.sock"}};

inline Deadline soon() { return Deadline::after_seconds(10); }
inline Deadline at_once() { return Deadline::after_seconds(0.2); }

class EngineClientTest : public testing::Test {
 protected:
  Status update_vllm(EngineUpdateOptions options = {}, Deadline deadline = soon()) {
    return EngineClient(EngineKind::kVllm, server_.endpoint(), "key")
        .update_weights(kAddresses, options, deadline, abort_);
  }
  Status update_sglang(EngineUpdateOptions options = {}) {
    return EngineClient(EngineKind::kSglang, server_.endpoint())
        .update_weights(kAddresses, options, soon(), abort_);
  }
  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const auto& request : server_.requests()) all.push_back(request.path);
    return all;
  }

  ScriptedServer server_;
  AbortSignal abort_;
};

/// As vLLM says that something has failed inside.
inline ScriptedAnswer failed_inside(const std::string& text) {
  const nlohmann::json error = {{"message", text}, {"type", "InternalServerError"}, {"code", 500}};
  return {.status = 500, .body = nlohmann::json{{"error", error}}.dump()};
}

// As vLLM 0.23 to 0.32 behave with several workers: each call stops listening at the first error,
// and what the workers behind that one have answered is found by the calls after it.

}  // namespace ckpt
