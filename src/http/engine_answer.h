// What an engine's HTTP answer means, in one line that says what to do.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"
#include "http/endpoint.h"
#include "http/http_client.h"

namespace ckpt {

enum class EngineKind {
  kVllm,        ///< through a worker extension (/collective_rpc)
  kVllmNative,  ///< through vLLM's own weight transfer and our backend of it (/update_weights)
  kSglang,
};
/// "vLLM", "SGLang".
std::string_view engine_name(EngineKind kind);

/// The text of an error body: error.message, message or detail of a JSON object, else the body; on
/// one line, at most 500 bytes. Pure; accepts any bytes.
std::string error_text(std::string_view body);

/// Ok for a 2xx answer whose body is empty or JSON and does not say `"success": false`. Pure.
Status check_answer(EngineKind kind, const Endpoint& endpoint, const HttpRequest& request,
                    const HttpResponse& response);

/// Whether vLLM says that something has failed inside: HTTP 500 with the members "message" and
/// "type" of an "error". Neither proxies nor receivers of ours answer like that. Pure.
bool is_error_of_vllm(const HttpResponse& response);

}  // namespace ckpt
