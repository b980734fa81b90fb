// vLLM's own weight transfer, as its client.
#include <nlohmann/json.hpp>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "http/engine_client.h"

namespace ckpt {
namespace {

using nlohmann::json;

std::string dump(const json& body) {
  // Addresses and versions come from outside: bytes that are no UTF-8 must not throw.
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// What the workers say of their draft models: whether all of them have one to update. vLLM writes
/// what is no list or object as Python's str() does.
Result<bool> draft_models_in(const std::string& engine, const std::string& body) {
  const json answer = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const json results = answer.is_object() ? answer.value("results", json()) : json();
  bool known = results.is_array() && !results.empty();
  bool all = true;
  for (const json& one : results) {
    const bool yes = one == true || one == "True";
    known = known && (yes || one == false || one == "False");
    all = all && yes;
  }
  if (known) return all;
  return protocol_error(concat(
      engine,
      ": POST /collective_rpc does not say whether there is a draft model: ", error_text(body)));
}

}  // namespace

// A session for the model, and one more for the draft model where there is one: its workers come to
// the same addresses again.
Status EngineClient::update_by_weight_transfer(const std::map<std::string, std::string>& addresses,
                                               const EngineUpdateOptions& options,
                                               Deadline deadline, const AbortSignal& abort) const {
  const json init = {{"init_info", json::object()}};
  const json update = {{"update_info", {{"addresses", addresses}}}};
  json version = nullptr;
  if (options.weight_version) version = *options.weight_version;
  CKPT_RETURN_IF_ERROR(
      call("POST", "/init_weight_transfer_engine", dump(init), deadline, abort).status());
  CKPT_ASSIGN_OR_RETURN(const bool draft, has_draft_model(deadline, abort));
  const bool several = addresses.size() > 1;
  std::vector<const char*> sessions = {"/start_weight_update"};
  if (draft) sessions.push_back("/start_draft_weight_update");
  for (const char* start : sessions) {
    const Status started = start_session(start, several, deadline, abort);
    const Status updated =
        started ? call("POST", "/update_weights" + options.query, dump(update), deadline, abort)
                      .status()
                : started;
    const json finish = {{"weight_version", start == sessions.back() ? version : json()}};
    const Status finished =
        updated ? call("POST", "/finish_weight_update", dump(finish), deadline, abort).status()
                : updated;
    if (started && !finished) end_session(several, deadline, interrupt_of(options));
    CKPT_RETURN_IF_ERROR(finished);
  }
  return Status::ok();
}

// Whoever started a session and went away has left it open; it holds nothing of ours.
Status EngineClient::start_session(const char* path, bool several_workers, Deadline deadline,
                                   const AbortSignal& abort) const {
  const Status started = call("POST", path, "{}", deadline, abort).status();
  if (started || started.message().find("already active") == std::string::npos) return started;
  log_warning(endpoint_.to_string(), ": a weight update was left open; it is finished first");
  end_session(several_workers, deadline, abort);
  return call("POST", path, "{}", deadline, abort).status();
}

// It is over even when this fails. Whatever became of the update's deadline, an open one stays.
void EngineClient::end_session(bool several_workers, Deadline deadline,
                               const AbortSignal& interrupt) const {
  const Deadline end = Deadline::after(kTidyTime);
  (void)call("POST", "/finish_weight_update", "{}", end, interrupt);
  const json nothing = {{"init_info", json::object()}};
  if (several_workers) {
    forget_answers("/init_weight_transfer_engine", dump(nothing), end.earlier(deadline), interrupt);
  }
}

Result<bool> EngineClient::has_draft_model(Deadline deadline, const AbortSignal& abort) const {
  // An older vLLM has no sessions for draft models. Its workers must not be asked: where there are
  // several, the answers of all but the first that fails stay behind, for the next call to find.
  const HttpRequest session{"GET", "/start_draft_weight_update", {}, bearer_token_};
  CKPT_ASSIGN_OR_RETURN(const HttpResponse known,
                        http_request(endpoint_, session, deadline, abort));
  if (known.status == 404) {
    log_info(endpoint_.to_string(),
             ": this vLLM's weight transfer takes no draft model; one that has a draft model needs "
             "--engine vllm and the worker extension");
    return false;
  }
  const json body = {{"method", "supports_draft_weight_updates"}};
  const HttpRequest request{"POST", "/collective_rpc", dump(body), bearer_token_};
  CKPT_ASSIGN_OR_RETURN(const HttpResponse response,
                        http_request(endpoint_, request, deadline, abort));
  CKPT_RETURN_IF_ERROR(check_answer(kind_, endpoint_, request, response));
  return draft_models_in(concat(engine_name(kind_), " at ", endpoint_.to_string()), response.body);
}

// The weight transfer's last call has set it, in a vLLM that keeps one; an older one takes no
// notice of it.
Status EngineClient::check_version(const std::string& version, Deadline deadline,
                                   const AbortSignal& abort) const {
  const HttpRequest request{"GET", "/weight_info", {}, bearer_token_};
  CKPT_ASSIGN_OR_RETURN(const HttpResponse response,
                        http_request(endpoint_, request, deadline, abort));
  if (response.status == 404 || response.status == 405) {
    log_warning(endpoint_.to_string(), ": this vLLM keeps no weight version");
    return Status::ok();
  }
  CKPT_RETURN_IF_ERROR(check_answer(kind_, endpoint_, request, response));
  const json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const json kept = body.is_object() ? body.value("weight_version", json()) : json();
  if (kept == version) return Status::ok();
  return protocol_error(concat(engine_name(kind_), " at ", endpoint_.to_string(),
                               ": calls its weights ", dump(kept), ", not ", quoted(version)));
}

}  // namespace ckpt
