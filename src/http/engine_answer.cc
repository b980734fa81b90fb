#include "http/engine_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxText = 500;

/// On one line, printable, cut where no UTF-8 character is.
std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
    if (blank && (out.empty() || out.back() == ' ')) continue;
    out.push_back(blank ? ' ' : c);
  }
  if (out.ends_with(' ')) out.pop_back();
  if (out.size() > kMaxText) {
    auto end = kMaxText;
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0) == 0x80) --end;
    out.resize(end);
    out += "...";
  }
  return out;
}

/// The first of the members in which servers put their text.
std::string member_text(const json& body) {
  for (const char* name : {"error", "message", "detail"}) {
    const auto member = body.find(name);
    if (member == body.end() || member->is_null()) continue;
    if (member->is_string()) return member->get<std::string>();
    if (member->is_object()) {
      const auto inner = member->find("message");
      if (inner != member->end() && inner->is_string()) return inner->get<std::string>();
    }
    return member->dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return {};
}

Status not_offered(EngineKind kind, const std::string& what, const std::string& path) {
  if (path == "/health" || path == "/ping") {
    return failed_precondition(concat(what, ": no such call there; every ", engine_name(kind),
                                      " has it: are --endpoint and --engine right?"));
  }
  if (kind == EngineKind::kSglang) {
    return failed_precondition(
        concat(what,
               ": no such call there; is this SGLang, and new enough to have it? (--engine "
               "says what is called)"));
  }
  if (kind == EngineKind::kVllmNative) {
    return failed_precondition(
        concat(what,
               ": no such call there; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment; a "
               "vLLM without weight transfer is updated with --engine vllm and the worker "
               "extension"));
  }
  return failed_precondition(
      concat(what,
             ": no such call there; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment "
             "(or is this not vLLM? --engine says what is called)"));
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> pieces) {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](auto piece) { return text.find(piece) != std::string_view::npos; });
}

/// What an engine says when it was started for something else; empty: not known.
std::string_view missing_setup(EngineKind kind, std::string_view text) {
  if (kind == EngineKind::kVllm && contains_any(text, {"update_weights_from_ipc"}) &&
      contains_any(text, {"attribute", "not implemented"})) {
    return "vLLM's workers cannot update_weights_from_ipc; start it with --worker-extension-cls "
           "checkpoint_engine.worker.VllmColocateWorkerExtension";
  }
  if (kind == EngineKind::kVllmNative &&
      contains_any(text, {"Weight transfer not configured", "Invalid update_info for",
                          "Invalid init_info for"})) {
    return "vLLM's weight transfer is not ours; install the Python package checkpoint-engine "
           "beside it and start it with --weight-transfer-config "
           "'{\"backend\":\"checkpoint_engine\"}'";
  }
  return {};
}

Status failed_inside(EngineKind kind, const std::string& what, int status,
                     const std::string& text) {
  if (const auto setup = missing_setup(kind, text); !setup.empty()) {
    return failed_precondition(concat(what, ": ", setup, " (it says: ", text, ")"));
  }
  return peer_error(concat(what, " failed with HTTP ", status, ": ",
                           text.empty() ? "no text; look at the engine's log" : text));
}

Status check_success(const std::string& what, const HttpResponse& response) {
  if (trim(response.body).empty()) return Status::ok();
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) {
    return protocol_error(concat(what, ": the answer is not JSON; is that the engine? It says: ",
                                 error_text(response.body)));
  }
  if (!body.is_object()) return Status::ok();
  const auto success = body.find("success");
  if (success == body.end() || *success != false) return Status::ok();
  const std::string text = error_text(response.body);
  return peer_error(concat(what, ": the engine says that it did not succeed: ",
                           text.empty() ? "no reason given; look at its log" : text));
}

}  // namespace

std::string_view engine_name(EngineKind kind) {
  return kind == EngineKind::kSglang ? "SGLang" : "vLLM";
}

std::string error_text(std::string_view body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return one_line(member_text(parsed));
  if (parsed.is_string()) return one_line(parsed.get<std::string>());
  return one_line(body);
}

Status check_answer(EngineKind kind, const Endpoint& endpoint, const HttpRequest& request,
                    const HttpResponse& response) {
  const std::string what =
      concat(engine_name(kind), " at ", endpoint.to_string(), ": ", request.method, " ",
             std::string_view(request.path).substr(0, request.path.find('?')));
  const int status = response.status;
  if (status >= 200 && status < 300) return check_success(what, response);
  if (status >= 300 && status < 400) {
    return failed_precondition(concat(what, ": redirected (HTTP ", status, ") to ",
                                      quoted(response.location),
                                      "; redirects are not followed: give the engine's own address "
                                      "as --endpoint"));
  }
  if (status == 401 || status == 403) {
    return failed_precondition(concat(what, ": not allowed (HTTP ", status,
                                      "); give the engine's API key with --api-key-file, from "
                                      "Python in the variable CHECKPOINT_ENGINE_API_KEY"));
  }
  if (status == 404 || status == 405) return not_offered(kind, what, request.path);
  return failed_inside(kind, what, status, error_text(response.body));
}

bool is_error_of_vllm(const HttpResponse& response) {
  if (response.status != 500) return false;
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const json error = body.is_object() ? body.value("error", json()) : json();
  return error.is_object() && error.value("message", json()).is_string() &&
         error.value("type", json()).is_string();
}

}  // namespace ckpt
