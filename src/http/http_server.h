// An HTTP server for one handler: a TCP port or a Unix socket, bounded bodies, errors in JSON.
//
// One thread waits for the heads of all requests; a connection takes a thread of its own only when
// its head is here, and the calls that never wait have threads that no other call takes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "http/endpoint.h"

namespace ckpt {

struct ServerRequest {
  std::string method;
  std::string path;  ///< as it was sent: not decoded, without its query
  std::string body;
};

struct ServerAnswer {
  int status = 200;
  std::string body;  ///< may be empty
  std::string content_type = "application/json";
};

/// {"error": {"message": message, "code": status}}
ServerAnswer error_answer(int status, const std::string& message);

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;             ///< 0: the kernel chooses
  std::string socket_path;  ///< a Unix socket instead (mode 0600); a stale one is replaced
  std::size_t max_body = 16u << 20;
  int threads = 16;  ///< as many calls are answered at once
  /// GETs of these are answered by threads of their own: the handler must not wait in them.
  std::vector<std::string> quick_paths;
  /// From the connection until the whole head of its request is here; else it is closed.
  double head_seconds = 10;
  /// Every call must carry it ("Authorization: Bearer ..."), except for GET of `open_path`.
  /// Empty: none is asked for.
  std::string bearer_token;
  std::string open_path;
};

/// Answers one request; from several threads at once. What it throws becomes a 500.
using HttpHandler = std::function<ServerAnswer(const ServerRequest&)>;

/// Serves from start() until stop(). All methods from any thread.
class HttpServer {
 public:
  /// Listens on return. kUnavailable when the address is taken.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// With the real port.
  const Endpoint& endpoint() const;
  /// Takes no further connection, and returns when every call under way has been answered. Again is
  /// fine.
  void stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
