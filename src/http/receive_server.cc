#include "http/receive_server.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "http/http_server.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr double kDefaultTimeout = 300;

/// What a call asks for, whichever engine's form it has.
struct UpdateCall {
  std::map<std::string, std::string> addresses;
  double timeout_seconds = kDefaultTimeout;
};

ServerAnswer answer(int status, const json& body) {
  return {status, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

ServerAnswer refusal(const Status& error) {
  // An update's own failure is never 404: an engine says by it that it has no such call.
  const bool mistake = error.code() == StatusCode::kInvalidArgument;
  const bool busy = error.code() == StatusCode::kFailedPrecondition;
  return error_answer(mistake ? 400 : busy ? 409 : 500, error.message());
}

Result<std::map<std::string, std::string>> parse_addresses(const json& map) {
  if (!map.is_object()) return invalid_argument("the map of worker addresses is not an object");
  std::map<std::string, std::string> addresses;
  for (const auto& [key, address] : map.items()) {
    if (!address.is_string()) {
      return invalid_argument(concat("the address of worker ", quoted(key), " is not a string"));
    }
    addresses[key] = address.get<std::string>();
  }
  return addresses;
}

Result<json> parse_object(const std::string& text) {
  json body = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return invalid_argument("the body is not a JSON object");
  return body;
}

/// {"method": "update_weights_from_ipc", "args": [{key: address}], "timeout": seconds}
Result<UpdateCall> parse_collective_rpc(const std::string& text) {
  CKPT_ASSIGN_OR_RETURN(const json body, parse_object(text));
  const auto method = body.find("method");
  if (method == body.end() || !method->is_string()) return invalid_argument("'method' is missing");
  if (*method != "update_weights_from_ipc") {
    return unsupported(concat("the workers have no method ", quoted(method->get<std::string>()),
                              ", only update_weights_from_ipc"));
  }
  const auto args = body.find("args");
  if (args == body.end() || !args->is_array() || args->size() != 1) {
    return invalid_argument("'args' must hold the map of worker addresses and nothing else");
  }
  UpdateCall call;
  CKPT_ASSIGN_OR_RETURN(call.addresses, parse_addresses(args->front()));
  const auto timeout = body.find("timeout");
  if (timeout != body.end() && timeout->is_number()) call.timeout_seconds = timeout->get<double>();
  return call;
}

/// {"zmq_handles": {key: address}, ...}
Result<UpdateCall> parse_update_from_ipc(const std::string& text) {
  CKPT_ASSIGN_OR_RETURN(const json body, parse_object(text));
  const auto handles = body.find("zmq_handles");
  if (handles == body.end()) return invalid_argument("'zmq_handles' is missing");
  UpdateCall call;
  CKPT_ASSIGN_OR_RETURN(call.addresses, parse_addresses(*handles));
  return call;
}

}  // namespace

class ReceiveServer::Impl {
 public:
  Impl(ReceiveServerOptions options, ReceivingInstance& instance)
      : options_(std::move(options)), instance_(instance) {}

  Status start() {
    HttpServerOptions http;
    http.host = options_.host;
    http.port = options_.port;
    http.socket_path = options_.socket_path;
    http.quick_paths = {"/health", "/ping"};
    CKPT_ASSIGN_OR_RETURN(server_,
                          HttpServer::start(std::move(http), [this](const ServerRequest& request) {
                            return handle(request);
                          }));
    return Status::ok();
  }

  HttpServer& server() { return *server_; }

 private:
  ServerAnswer handle(const ServerRequest& request) {
    if (request.method == "GET" && request.path == "/health") return health();
    if (request.method == "GET" && request.path == "/ping") return {};
    if (request.method == "POST" && request.path == "/collective_rpc") {
      return collective_rpc(request.body);
    }
    if (request.method == "POST" && request.path == "/update_weights_from_ipc") {
      return update_weights_from_ipc(request.body);
    }
    return error_answer(404, concat("no such call: ", request.method, " ", quoted(request.path)));
  }

  ServerAnswer health() {
    const Status health = instance_.health();
    if (health) return {};
    // Unhealthy, and still ready for what heals it (see EngineClient::wait_ready).
    return answer(503, {{"error", {{"message", health.message()}, {"code", 503}}},
                        {"accepts_update", !instance_.updating()}});
  }

  Result<InstanceReport> update(const UpdateCall& call) {
    auto report = instance_.update(call.addresses, call.timeout_seconds);
    if (options_.on_update) options_.on_update(report);
    return report;
  }

  ServerAnswer collective_rpc(const std::string& body) {
    const auto call = parse_collective_rpc(body);
    if (!call) return refusal(call.status());
    const auto report = update(*call);
    if (!report) return refusal(report.status());
    return answer(200, {{"results", json(static_cast<std::size_t>(instance_.workers()), nullptr)}});
  }

  ServerAnswer update_weights_from_ipc(const std::string& body) {
    const auto call = parse_update_from_ipc(body);
    const Status outcome = call ? update(*call).status() : call.status();
    return answer(outcome ? 200 : 400,
                  {{"success", outcome.is_ok()}, {"message", outcome ? "ok" : outcome.message()}});
  }

  const ReceiveServerOptions options_;
  ReceivingInstance& instance_;
  std::unique_ptr<HttpServer> server_;
};

ReceiveServer::ReceiveServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReceiveServer::~ReceiveServer() = default;

Result<std::unique_ptr<ReceiveServer>> ReceiveServer::start(ReceiveServerOptions options,
                                                            ReceivingInstance& instance) {
  auto impl = std::make_unique<Impl>(std::move(options), instance);
  CKPT_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<ReceiveServer>(new ReceiveServer(std::move(impl)));
}

const Endpoint& ReceiveServer::endpoint() const { return impl_->server().endpoint(); }
void ReceiveServer::stop() { impl_->server().stop(); }

}  // namespace ckpt
