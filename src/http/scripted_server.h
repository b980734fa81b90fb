// An engine for tests: answers each call as it was told to, including with damage.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "http/endpoint.h"

namespace ckpt {

struct ScriptedAnswer {
  enum class Verb {
    kAnswer,   ///< send the answer
    kTrickle,  ///< send it a byte every 20 ms
    kHang,     ///< read the request and say nothing
    kReset,    ///< read the request and reset the connection
    kCut,      ///< promise the body, send half of it and close
    kGarbage,  ///< say something that is not HTTP
  };
  int status = 200;
  std::string body;
  std::string headers;  ///< lines that end in "\r\n"
  Verb verb = Verb::kAnswer;
};

struct ScriptedRequest {
  std::string method, path, headers, body;
};

/// Listens from construction on; the destructor ends every connection. 404 where nothing is
/// scripted.
class ScriptedServer {
 public:
  /// A port of the kernel's choice on `host` (a numeric address), or a Unix socket when it begins
  /// with '/'.
  explicit ScriptedServer(const std::string& host = "127.0.0.1");
  ~ScriptedServer();

  const Endpoint& endpoint() const { return endpoint_; }
  /// The next answer for `path` (without its query); the last one stays.
  void script(const std::string& path, ScriptedAnswer answer);
  /// All requests so far, in the order of their arrival.
  std::vector<ScriptedRequest> requests() const;

 private:
  void listen_tcp(const std::string& host);
  void listen_unix(const std::string& path);
  void accept_all();
  void serve(int fd);
  ScriptedAnswer next_answer(const ScriptedRequest& request);

  Endpoint endpoint_;
  UniqueFd listener_;
  EventFd stop_;
  mutable std::mutex mutex_;
  std::map<std::string, std::list<ScriptedAnswer>> script_;
  std::vector<ScriptedRequest> requests_;
  std::vector<std::thread> connections_;  // made by the acceptor alone
  std::thread acceptor_;
};

}  // namespace ckpt
