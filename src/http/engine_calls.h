// The call that an update makes to its engines: which instance is told, where, and how.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/abort_signal.h"
#include "checkpoint_engine/parameter_server.h"
#include "http/endpoint.h"
#include "http/engine_client.h"

namespace ckpt {

/// "vllm", "vllm-native", "sglang", "none"; nothing else.
enum class EngineChoice { kVllm, kVllmNative, kSglang, kNone };
Result<EngineChoice> parse_engine_choice(std::string_view text);

struct EngineCallOptions {
  EngineChoice engine = EngineChoice::kVllm;
  /// One for each instance in rank order, or one for all: then every host has an instance there.
  std::vector<Endpoint> endpoints;
  int instance_size = 0;  ///< ranks of an instance, at least 1
  std::string bearer_token;
  EngineUpdateOptions update;
  /// Raised: engine calls end with its cause, and so does the update. May be null.
  std::shared_ptr<AbortSignal> interrupt;
  /// Told what engines answer; may be empty. On the thread of the call.
  EngineClient::Observer observer;
  /// kNone: nobody is called; this is given each instance's key -> address map, so that whoever
  /// runs the engine can hand it on. On the thread of the update.
  std::function<void(int instance, const std::map<std::string, std::string>&)> announce;
};

/// How the chosen engine is spoken to; not for kNone.
EngineKind engine_kind(EngineChoice choice);

/// The endpoint of the instance whose first rank is `rank`.
Result<Endpoint> instance_endpoint(const EngineCallOptions& options, int rank);
/// Tells one engine to update: its answer, or the cause with which the update or `interrupt` (may
/// be null) has ended meanwhile.
Status call_engine(const EngineClient& client, const std::map<std::string, std::string>& addresses,
                   const EngineUpdateOptions& options,
                   const std::shared_ptr<AbortSignal>& interrupt, EngineCallContext& context);
/// The call for ParameterServer::commit; the first rank of each instance speaks to its engine, all
/// others return at once.
EngineCall make_engine_call(EngineCallOptions options);

}  // namespace ckpt
