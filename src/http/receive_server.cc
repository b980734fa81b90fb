#include "http/receive_server.h"

#include <httplib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/strings.h"
#include "http/connect.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxBody = 16u << 20;
constexpr double kDefaultTimeout = 300;

/// What a call asks for, whichever engine's form it has.
struct UpdateCall {
  std::map<std::string, std::string> addresses;
  double timeout_seconds = kDefaultTimeout;
};

void answer(httplib::Response& response, int status, const json& body) {
  response.status = status;
  response.set_content(body.dump(-1, ' ', false, json::error_handler_t::replace),
                       "application/json");
}

void answer_error(httplib::Response& response, int status, const std::string& message) {
  answer(response, status, {{"error", {{"message", message}, {"code", status}}}});
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

int http_status(const Status& error) {
  switch (error.code()) {
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kFailedPrecondition:
      return 409;
    default:
      return 500;
  }
}

/// A socket file that nobody serves any more is in the way of bind; one that is served is not ours.
Status remove_stale_socket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Status::ok();
  if (!S_ISSOCK(info.st_mode)) {
    return already_exists(concat(path, ": is there, and is no socket; give another path"));
  }
  CKPT_ASSIGN_OR_RETURN(const Endpoint endpoint, unix_endpoint(path));
  const AbortSignal never;
  if (connect_endpoint(endpoint, Deadline::after_seconds(1), never)) {
    return unavailable(concat(path, ": another process serves this socket"));
  }
  return ::unlink(path.c_str()) == 0 ? Status::ok() : errno_error(path, errno);
}

}  // namespace

class ReceiveServer::Impl {
 public:
  Impl(ReceiveServerOptions options, ReceivingInstance& instance)
      : options_(std::move(options)), instance_(instance) {}
  ~Impl() { stop(); }

  Status start() {
    set_up();
    CKPT_RETURN_IF_ERROR(options_.socket_path.empty() ? bind_tcp() : bind_unix());
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // Before it runs, the library's stop() would do nothing.
    while (!server_.is_running()) std::this_thread::yield();
    return Status::ok();
  }

  void stop() {
    const std::lock_guard lock(stop_mutex_);
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
    if (!options_.socket_path.empty()) ::unlink(options_.socket_path.c_str());
  }

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  void set_up() {
    server_.new_task_queue = [] { return new httplib::ThreadPool(8); };
    server_.set_payload_max_length(kMaxBody);
    // One call per connection: stop() then never waits for a client that keeps one open.
    server_.set_keep_alive_max_count(1);
    // The library's default shares the port with whoever else asks for it.
    server_.set_socket_options([](int fd) {
      const int on = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    server_.set_exception_handler(
        [](const httplib::Request& request, httplib::Response& response, std::exception_ptr) {
          log_error("http: internal error in ", request.method, " ", quoted(request.path));
          answer_error(response, 500, "internal error");
        });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      answer_error(response, response.status,
                   response.status == 404
                       ? concat("no such call: ", request.method, " ", quoted(request.path))
                       : concat("HTTP ", response.status));
    });
    server_.Get("/health",
                [this](const httplib::Request&, httplib::Response& out) { health(out); });
    server_.Get("/ping", [](const httplib::Request&, httplib::Response& out) { out.status = 200; });
    server_.Post("/collective_rpc", [this](const httplib::Request& in, httplib::Response& out) {
      collective_rpc(in, out);
    });
    server_.Post("/update_weights_from_ipc",
                 [this](const httplib::Request& in, httplib::Response& out) {
                   update_weights_from_ipc(in, out);
                 });
  }

  Status bind_tcp() {
    int port = options_.port;
    if (port == 0) {
      port = server_.bind_to_any_port(options_.host);
    } else if (!server_.bind_to_port(options_.host, port)) {
      port = -1;
    }
    endpoint_.host = options_.host;
    endpoint_.port = port < 0 ? options_.port : port;
    if (port < 0) {
      return unavailable(concat("cannot listen on ", endpoint_.host_header(),
                                ": is the port taken, or the address not of this host?"));
    }
    return Status::ok();
  }

  Status bind_unix() {
    CKPT_ASSIGN_OR_RETURN(endpoint_, unix_endpoint(options_.socket_path));
    CKPT_RETURN_IF_ERROR(remove_stale_socket(options_.socket_path));
    server_.set_address_family(AF_UNIX);
    const mode_t before = ::umask(0177);
    const bool bound = server_.bind_to_port(options_.socket_path, 80);
    ::umask(before);
    if (bound) return Status::ok();
    return unavailable(concat("cannot listen on the Unix socket ", options_.socket_path,
                              ": does its folder exist, and may we write there?"));
  }

  void health(httplib::Response& out) {
    const Status health = instance_.health();
    if (health) {
      out.status = 200;
      return;
    }
    // Unhealthy, and still ready for what heals it (see EngineClient::wait_ready).
    answer(out, 503,
           {{"error", {{"message", health.message()}, {"code", 503}}},
            {"accepts_update", !instance_.updating()}});
  }

  Result<InstanceReport> update(const UpdateCall& call) {
    auto report = instance_.update(call.addresses, call.timeout_seconds);
    if (options_.on_update) options_.on_update(report);
    return report;
  }

  void collective_rpc(const httplib::Request& in, httplib::Response& out) {
    const auto call = parse_collective_rpc(in.body);
    if (!call) return answer_error(out, http_status(call.status()), call.status().message());
    const auto report = update(*call);
    if (!report) return answer_error(out, http_status(report.status()), report.status().message());
    answer(out, 200, {{"results", json(static_cast<std::size_t>(instance_.workers()), nullptr)}});
  }

  void update_weights_from_ipc(const httplib::Request& in, httplib::Response& out) {
    const auto call = parse_update_from_ipc(in.body);
    const Status outcome = call ? update(*call).status() : call.status();
    answer(out, outcome ? 200 : 400,
           {{"success", outcome.is_ok()}, {"message", outcome ? "ok" : outcome.message()}});
  }

  const ReceiveServerOptions options_;
  ReceivingInstance& instance_;
  Endpoint endpoint_;
  httplib::Server server_;
  std::thread thread_;
  std::mutex stop_mutex_;
};

ReceiveServer::ReceiveServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReceiveServer::~ReceiveServer() = default;

Result<std::unique_ptr<ReceiveServer>> ReceiveServer::start(ReceiveServerOptions options,
                                                            ReceivingInstance& instance) {
  auto impl = std::make_unique<Impl>(std::move(options), instance);
  CKPT_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<ReceiveServer>(new ReceiveServer(std::move(impl)));
}

const Endpoint& ReceiveServer::endpoint() const { return impl_->endpoint(); }
void ReceiveServer::stop() { impl_->stop(); }

}  // namespace ckpt
