// One HTTP request, one answer: never through a proxy, never a redirect followed, ended by a
// deadline or an abort.
#pragma once

#include <string>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "http/endpoint.h"

namespace ckpt {

struct HttpRequest {
  std::string method;  ///< "GET", "POST"
  std::string path;    ///< with its query, behind the endpoint's base path
  std::string body;    ///< JSON; empty: none
  std::string bearer_token;
};

struct HttpResponse {
  int status = 0;
  std::string body;      ///< at most kMaxHttpBody bytes
  std::string location;  ///< of a redirect
};

/// An answer that is longer is an error: engines answer with a line.
inline constexpr std::size_t kMaxHttpBody = 16u << 20;

/// Sends `request` over a connection of its own and waits for the whole answer, whatever its status
/// is. Errors: kUnavailable (nobody listens), kPeerLost (the connection broke), kDeadlineExceeded,
/// the cause of `abort`, kProtocol (no HTTP, or too long). Blocking; any thread.
Result<HttpResponse> http_request(const Endpoint& endpoint, const HttpRequest& request,
                                  Deadline deadline, const AbortSignal& abort);

}  // namespace ckpt
