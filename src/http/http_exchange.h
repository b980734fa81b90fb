// One HTTP call over a connection whose request has begun to come: read, allowed, answered.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "http/http_server.h"

namespace ckpt {

/// A connection, and what was read of it so far.
struct BegunCall {
  int fd = -1;       ///< borrowed
  std::string head;  ///< the request's lines, and perhaps the beginning of its body
  bool cut = false;  ///< nothing is read behind `head`
  int stop_fd = -1;  ///< readable: a body that has not come yet is given up
};

/// Speaks HTTP for one handler. From several threads at once.
class HttpExchange {
 public:
  /// Of `options`: max_body, bearer_token, open_path.
  HttpExchange(const HttpServerOptions& options, HttpHandler handler);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  /// Answers one call; the connection is good for no other. Blocking: for the body and for the
  /// client to take the answer at most kBodyTime each, and for the handler.
  void serve(const BegunCall& call);

  /// For a body, or an answer, as a whole.
  static constexpr std::chrono::seconds kBodyTime{60};
  /// Without a byte of it.
  static constexpr std::chrono::seconds kSilence{5};

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
