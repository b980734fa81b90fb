#include "http/service_routes.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace ckpt {
namespace {

using nlohmann::json;

ServerAnswer answer_json(const json& body) {
  return {200, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

int http_status(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kAlreadyExists:
    case StatusCode::kFailedPrecondition:
      return 409;
    case StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

ServerAnswer outcome(const Status& status) {
  if (status) return {};
  const auto rank = status.rank();
  return error_answer(http_status(status.code()),
                      concat(rank ? concat("rank ", *rank, ": ") : "", status.message()));
}

json json_of(const ServiceState::Update& update) {
  json workers = json::array();
  for (const WorkerAddress& worker : update.workers) {
    workers.push_back({{"key", worker.key}, {"address", worker.address}});
  }
  return {{"checkpoint", update.checkpoint},
          {"seconds", update.seconds},
          {"loaded_bytes", update.loaded_bytes},
          {"total_bytes", update.total_bytes},
          {"workers", std::move(workers)}};
}

json json_of(const ServiceState& state) {
  json checkpoints = json::array();
  for (const auto& each : state.checkpoints) {
    checkpoints.push_back({{"name", each.name}, {"tensors", each.tensors}, {"bytes", each.bytes}});
  }
  json body = {{"rank", state.rank},
               {"world_size", state.world_size},
               {"operation", state.operation.empty() ? json() : json(state.operation)},
               {"checkpoints", std::move(checkpoints)},
               {"metas", nullptr},
               {"update", nullptr},
               {"last_update", nullptr}};
  if (!state.metas_of.empty()) {
    body["metas"] = {{"checkpoint", state.metas_of}, {"loaded", state.metas_loaded}};
  }
  if (state.update) body["update"] = json_of(*state.update);
  if (state.last_update) {
    body["last_update"] = json_of(*state.last_update);
    body["last_update"]["error"] = state.last_error.empty() ? json() : json(state.last_error);
  }
  return body;
}

/// One call: its route (for the counters) and its answer.
class Call {
 public:
  Call(Service& service, const ServiceMetrics& metrics, const ServerRequest& request)
      : service_(service), metrics_(metrics), request_(request) {}

  ServerAnswer answer() {
    if (!request_.path.starts_with('/')) return unknown();
    const auto segments = split(std::string_view(request_.path).substr(1), '/');
    if (segments.size() == 1) return top_level(segments[0]);
    if (segments.size() >= 2 && segments[0] == "v1") {
      if (segments[1] == "checkpoints" && segments.size() >= 3) return checkpoint(segments);
      if (segments.size() == 2) return v1(segments[1]);
    }
    return unknown();
  }
  const std::string& route() const { return route_; }

 private:
  ServerAnswer top_level(const std::string& name) {
    if (name == "metrics") {
      return get("/metrics", [&]() -> ServerAnswer {
        return {200, metrics_.text(service_.state()), "text/plain; version=0.0.4"};
      });
    }
    if (name == "openapi.json") {
      return get("/openapi.json", []() -> ServerAnswer { return {200, service_openapi()}; });
    }
    return unknown();
  }

  ServerAnswer v1(const std::string& name) {
    if (name == "healthz") return get("/v1/healthz", [] { return ServerAnswer(); });
    if (name == "status") {
      return get("/v1/status", [&] { return answer_json(json_of(service_.state())); });
    }
    if (name != "metas") return unknown();
    route_ = "/v1/metas";
    if (request_.method == "POST") return outcome(service_.load_metas(request_.body));
    if (request_.method != "GET") return other_method("GET and POST");
    auto metas = service_.export_metas();
    return metas ? ServerAnswer{200, std::move(*metas)} : outcome(metas.status());
  }

  ServerAnswer checkpoint(const std::vector<std::string>& segments) {
    const std::string action = segments.size() == 4 ? segments[3] : "";
    if (segments.size() > 4 || (segments.size() == 4 && action != "files" &&
                                action != "gather-metas" && action != "update")) {
      return unknown();
    }
    route_ = concat("/v1/checkpoints/{name}", action.empty() ? "" : "/", action);
    const char* const method = action.empty() ? "DELETE" : "POST";
    if (request_.method != method) return other_method(method);
    const auto name = checkpoint_name(segments[2]);
    if (!name) return outcome(name.status());
    if (action == "files") return register_files(*name);
    if (action == "gather-metas") return outcome(service_.gather(*name));
    if (action == "update") return update(*name);
    return outcome(service_.unregister(*name));
  }

  ServerAnswer register_files(const std::string& name) {
    const auto body = parse_files_request(request_.body);
    if (!body) return outcome(body.status());
    const auto files = service_.allowed_files(body->files);
    if (!files) return error_answer(403, files.status().message());
    return outcome(service_.register_files(name, *files));
  }

  ServerAnswer update(const std::string& name) {
    const auto body = parse_update_request(request_.body, service_.state().world_size);
    return outcome(body ? service_.update(name, *body) : body.status());
  }

  template <typename Body>
  ServerAnswer get(const char* route, Body body) {
    route_ = route;
    return request_.method == "GET" ? body() : other_method("GET");
  }

  ServerAnswer other_method(const char* methods) const {
    return error_answer(405, concat(request_.path, " takes ", methods, ", not ", request_.method));
  }
  ServerAnswer unknown() const {
    return error_answer(404, concat("no such call: ", request_.method, " ", quoted(request_.path),
                                    "; GET /openapi.json lists them"));
  }

  Service& service_;
  const ServiceMetrics& metrics_;
  const ServerRequest& request_;
  std::string route_ = "other";
};

}  // namespace

ServerAnswer ServiceRoutes::handle(const ServerRequest& request) {
  Call call(service_, metrics_, request);
  ServerAnswer answer = call.answer();
  metrics_.count_call(call.route(), answer.status);
  return answer;
}

}  // namespace ckpt
