#include "http/http_server.h"

#include <httplib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/strings.h"
#include "http/connect.h"

namespace ckpt {
namespace {

using nlohmann::json;

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

/// Takes as long for a wrong text as for the right one.
bool same_secret(std::string_view given, std::string_view wanted) {
  unsigned char difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i] ^ wanted[i % wanted.size()]);
  }
  return difference == 0;
}

void put(const ServerAnswer& answer, httplib::Response& out) {
  out.status = answer.status;
  // Without a body there is no type: a client must not try to read one.
  if (!answer.body.empty()) out.set_content(answer.body, answer.content_type);
}

bool has_body(const httplib::Request& in) {
  return in.has_header("Content-Length") || in.has_header("Transfer-Encoding");
}

const char* text_of_status(int status) {
  switch (status) {
    case 400:
      return "this is no HTTP request that is understood here";
    case 404:
      return "no such call";
    case 413:
      return "the body is too long";
    case 414:
      return "the address is too long";
    default:
      return "the request is refused";
  }
}

}  // namespace

ServerAnswer error_answer(int status, const std::string& message) {
  const json body = {{"error", {{"message", message}, {"code", status}}}};
  // Messages quote what came from outside: bytes that are no UTF-8 must not throw.
  return {status, body.dump(-1, ' ', false, json::error_handler_t::replace)};
}

class HttpServer::Impl {
 public:
  Impl(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)), handler_(std::move(handler)) {}
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
    server_.new_task_queue = [threads = static_cast<std::size_t>(options_.threads)] {
      return new httplib::ThreadPool(threads);
    };
    server_.set_payload_max_length(options_.max_body);
    // One call per connection: stop() then never waits for a client that keeps one open.
    server_.set_keep_alive_max_count(1);
    // The library's default shares the port with whoever else asks for it.
    server_.set_socket_options([](int fd) {
      const int on = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    server_.set_exception_handler(
        [](const httplib::Request& in, httplib::Response& out, std::exception_ptr) {
          log_error("http: internal error in ", in.method, " ", quoted(in.path));
          put(error_answer(500, "internal error"), out);
        });
    server_.set_error_handler([](const httplib::Request& in, httplib::Response& out) {
      if (!out.body.empty()) return;
      put(error_answer(out.status,
                       concat(text_of_status(out.status), ": ", in.method, " ", quoted(in.path))),
          out);
    });
    server_.set_pre_routing_handler([this](const httplib::Request& in, httplib::Response& out) {
      return before_body(in, out) ? httplib::Server::HandlerResponse::Unhandled
                                  : httplib::Server::HandlerResponse::Handled;
    });
    const auto handle = [this](const httplib::Request& in, httplib::Response& out) {
      answer(in, out);
    };
    server_.Get(".*", handle);
    server_.Post(".*", handle);
    server_.Put(".*", handle);
    server_.Patch(".*", handle);
    server_.Delete(".*", handle);
  }

  /// True when the body is to be read. The library would wait for the body of a POST that has none
  /// until the connection ends.
  bool before_body(const httplib::Request& in, httplib::Response& out) {
    if (!allowed(in)) {
      out.set_header("WWW-Authenticate", "Bearer");
      put(error_answer(401, "this call needs the service's token (Authorization: Bearer TOKEN)"),
          out);
      return false;
    }
    if (has_body(in)) return true;
    answer(in, out);
    return false;
  }

  bool allowed(const httplib::Request& in) const {
    if (options_.bearer_token.empty()) return true;
    if (in.method == "GET" && !options_.open_path.empty() && in.path == options_.open_path) {
      return true;
    }
    constexpr std::string_view kScheme = "Bearer ";
    const std::string given = in.get_header_value("Authorization");
    return given.starts_with(kScheme) &&
           same_secret(std::string_view(given).substr(kScheme.size()), options_.bearer_token);
  }

  void answer(const httplib::Request& in, httplib::Response& out) {
    put(handler_({in.method, in.target.substr(0, in.target.find('?')), in.body}), out);
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

  const HttpServerOptions options_;
  const HttpHandler handler_;
  Endpoint endpoint_;
  httplib::Server server_;
  std::thread thread_;
  std::mutex stop_mutex_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options,
                                                      HttpHandler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  CKPT_RETURN_IF_ERROR(impl->start());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const Endpoint& HttpServer::endpoint() const { return impl_->endpoint(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace ckpt
