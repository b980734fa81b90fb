#include "http/engine_client.h"

#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "http/http_client.h"

namespace ckpt {
namespace {

using nlohmann::json;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

constexpr auto kReadyInterval = 250ms;
/// One question whether an engine is ready; a loaded engine answers late.
constexpr auto kReadyAnswer = 5s;
/// An engine must not stay paused because the update's own time is over.
constexpr auto kResumeTime = 10s;
/// Transfers of cached blocks that are under way hold them, too.
constexpr auto kResetTime = 10s;
constexpr auto kResetInterval = 100ms;
/// A worker's answers lag behind by one for each call that failed before, and an error among them
/// comes to light so many calls later.
constexpr int kGoodAnswers = 16;
constexpr int kLeftAnswers = 128;
/// Whoever names another path has a handler there that may take any call for an update.
constexpr std::string_view kCollectiveRpc = "/collective_rpc";
constexpr std::size_t kObservedBytes = 500;

std::string dump(const json& body) {
  // Addresses and versions come from outside: bytes that are no UTF-8 must not throw.
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// 200, or a 503 of one that waits for its first weights: every SGLang that was started so, and a
/// receiver of ours that says it.
bool accepts_update(EngineKind kind, const HttpResponse& response) {
  if (response.status == 200) return true;
  if (response.status != 503) return false;
  if (kind == EngineKind::kSglang) return true;
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  return body.is_object() && body.value("accepts_update", json()) == true;
}

}  // namespace

EngineClient::EngineClient(EngineKind kind, Endpoint endpoint, std::string bearer_token,
                           Observer observer)
    : kind_(kind),
      endpoint_(std::move(endpoint)),
      bearer_token_(std::move(bearer_token)),
      observer_(std::move(observer)) {}

Result<std::string> EngineClient::call(const std::string& method, const std::string& path,
                                       const std::string& json_body, Deadline deadline,
                                       const AbortSignal& abort) const {
  const HttpRequest request{method, path, json_body, bearer_token_};
  CKPT_ASSIGN_OR_RETURN(HttpResponse response, ask(request, deadline, abort));
  CKPT_RETURN_IF_ERROR(check_answer(kind_, endpoint_, request, response));
  return std::move(response.body);
}

/// With whatever status; the observer is told.
Result<HttpResponse> EngineClient::ask(const HttpRequest& request, Deadline deadline,
                                       const AbortSignal& abort) const {
  const auto begin = Deadline::Clock::now();
  CKPT_ASSIGN_OR_RETURN(HttpResponse response, http_request(endpoint_, request, deadline, abort));
  if (observer_) {
    const std::chrono::duration<double> taken = Deadline::Clock::now() - begin;
    observer_({endpoint_.to_string(), request.path, response.status, taken.count(),
               response.body.substr(0, kObservedBytes)});
  }
  return response;
}

const AbortSignal& EngineClient::interrupt_of(const EngineUpdateOptions& options) {
  static const AbortSignal never;
  return options.interrupt ? *options.interrupt : never;
}

Status EngineClient::wait_ready(Deadline deadline, const AbortSignal& abort) const {
  const char* path = kind_ == EngineKind::kSglang ? "/ping" : "/health";
  const HttpRequest request{"GET", path, {}, bearer_token_};
  Status why;
  for (;;) {
    const Deadline answer = Deadline::after(kReadyAnswer).earlier(deadline);
    const auto response = http_request(endpoint_, request, answer, abort);
    if (response && accepts_update(kind_, *response)) return Status::ok();
    if (abort.raised()) return abort.cause();
    Status now = response ? check_answer(kind_, endpoint_, request, *response) : response.status();
    if (now) now = protocol_error(concat("HTTP ", response->status, " instead of 200"));
    // Waiting does not turn one of these into a yes.
    if (now.code() == StatusCode::kFailedPrecondition) return now;
    // What the engine said is worth more than that the last question came too late.
    if (why.is_ok() || now.code() != StatusCode::kDeadlineExceeded) why = now;
    if (deadline.expired()) return why.with_context("the engine is not ready");
    pollfd wait = {abort.fd(), POLLIN, 0};
    ::poll(&wait, 1, Deadline::after(kReadyInterval).earlier(deadline).poll_ms());
  }
}

Status EngineClient::update_weights(const std::map<std::string, std::string>& addresses,
                                    const EngineUpdateOptions& options, Deadline deadline,
                                    const AbortSignal& abort) const {
  if (kind_ == EngineKind::kSglang) return update_sglang(addresses, options, deadline, abort);
  if (options.pause_mode.empty()) return update_vllm(addresses, options, deadline, abort);
  if (abort.raised()) return abort.cause();
  const Status paused =
      call("POST", "/pause?mode=" + options.pause_mode, "", deadline, abort).status();
  const Status updated = paused ? update_vllm(addresses, options, deadline, abort) : paused;
  // Also after a pause that failed: one that hung or was given up may have taken effect.
  const AbortSignal never;
  const Status resumed = call("POST", "/resume", "", Deadline::after(kResumeTime), never).status();
  if (!updated) {
    if (!resumed) log_error("the engine may stay paused: ", resumed.message());
    return updated;
  }
  return resumed ? resumed : resumed.with_context("the weights are in place, but it stays paused");
}

Status EngineClient::update_vllm(const std::map<std::string, std::string>& addresses,
                                 const EngineUpdateOptions& options, Deadline deadline,
                                 const AbortSignal& abort) const {
  CKPT_RETURN_IF_ERROR(kind_ == EngineKind::kVllm
                           ? update_by_extension(addresses, options, deadline, abort)
                           : update_by_weight_transfer(addresses, options, deadline, abort));
  return after_vllm_update(options, deadline, abort)
      .with_context("the weights are in place, but what follows failed");
}

Status EngineClient::update_by_extension(const std::map<std::string, std::string>& addresses,
                                         const EngineUpdateOptions& options, Deadline deadline,
                                         const AbortSignal& abort) const {
  const json body = {{"method", "update_weights_from_ipc"},
                     {"args", json::array({addresses})},
                     {"kwargs", json::object()},
                     {"timeout", deadline.remaining_seconds()}};
  const bool asked = !abort.raised();
  const HttpRequest request{"POST", options.rpc_path + options.query, dump(body), bearer_token_};
  const auto response = ask(request, deadline, abort);
  const Status updated =
      response ? check_answer(kind_, endpoint_, request, *response) : response.status();
  // A call that was cut off because the update has failed elsewhere fails in the workers, too.
  const bool workers_failed = response ? is_error_of_vllm(*response) : asked && abort.raised();
  if (workers_failed && addresses.size() > 1 && options.rpc_path == kCollectiveRpc) {
    forget_answers(request.path, dump({{"method", "check_health"}}),
                   Deadline::after(kTidyTime).earlier(deadline), interrupt_of(options));
  }
  return updated;
}

// vLLM's executor stops listening at the first worker whose answer is an error. The answers of
// those behind it stay, and each is taken for the answer of a later call (0.23 to 0.32). So a call
// that does nothing is made until it has been no error so often that nothing can be left. The
// update's abort signal does not end this: a failure elsewhere is the reason for it.
void EngineClient::forget_answers(const std::string& path, const std::string& nothing,
                                  Deadline deadline, const AbortSignal& interrupt) const {
  const HttpRequest request{"POST", path, nothing, bearer_token_};
  int good = 0;
  for (int i = 0; i < kLeftAnswers && good < kGoodAnswers; ++i) {
    const auto answer = ask(request, deadline, interrupt);
    const bool fine = answer && answer->status == 200;
    if (!fine && !(answer && is_error_of_vllm(*answer))) return;  // no answer of a worker
    good = fine ? good + 1 : 0;
  }
}

Status EngineClient::after_vllm_update(const EngineUpdateOptions& options, Deadline deadline,
                                       const AbortSignal& abort) const {
  // Each whatever becomes of the other: the weights are the new ones.
  const Status named = options.weight_version
                           ? name_weights(*options.weight_version, deadline, abort)
                           : Status::ok();
  const Status reset =
      options.reset_prefix_cache ? reset_prefix_cache(deadline, abort) : Status::ok();
  return named ? reset : named;
}

Status EngineClient::name_weights(const std::string& version, Deadline deadline,
                                  const AbortSignal& abort) const {
  if (kind_ == EngineKind::kVllmNative) return check_version(version, deadline, abort);
  const json body = {{"new_version", version}};
  return call("POST", "/update_weight_version", dump(body), deadline, abort).status();
}

// vLLM resets nothing while requests hold blocks, which they always do in an engine that is paused
// with "keep" or is busy. They have to compute them anew, from the new weights.
Status EngineClient::reset_prefix_cache(Deadline deadline, const AbortSignal& abort) const {
  const Deadline patience = Deadline::after(kResetTime).earlier(deadline);
  const char* path = "/reset_prefix_cache";
  for (;;) {
    const Status reset = call("POST", path, "", deadline, abort).status();
    if (reset || reset.code() != StatusCode::kPeerError) return reset;
    path = "/reset_prefix_cache?reset_running_requests=true";
    pollfd wait = {abort.fd(), POLLIN, 0};
    ::poll(&wait, 1, Deadline::after(kResetInterval).earlier(patience).poll_ms());
    if (patience.expired() || abort.raised()) return reset;
  }
}

Status EngineClient::update_sglang(const std::map<std::string, std::string>& addresses,
                                   const EngineUpdateOptions& options, Deadline deadline,
                                   const AbortSignal& abort) const {
  json body = {{"zmq_handles", addresses}, {"flush_cache", true}, {"weight_version", nullptr}};
  if (options.weight_version) body["weight_version"] = *options.weight_version;
  return call("POST", "/update_weights_from_ipc" + options.query, dump(body), deadline, abort)
      .status();
}

}  // namespace ckpt
