// The service's HTTP API: which call is which operation, and what is answered.
//
//   POST   /v1/checkpoints/{name}/files         {"files": [PATH, ...]}
//   DELETE /v1/checkpoints/{name}
//   POST   /v1/checkpoints/{name}/gather-metas
//   POST   /v1/checkpoints/{name}/update        service_requests.h has the body
//   GET    /v1/metas, POST /v1/metas            field_metas_json.h has the form; POST takes
//                                              that of metas_json.h too
//   GET    /v1/healthz, /v1/status, /metrics, /openapi.json
//
// Success without a text is 200 with an empty body; an error is {"error": {"message", "code"}}: 400
// a request that is wrong, 401 without token, 403 a file outside --allow-path, 404 unknown, 405
// another method is meant, 409 not now, 413 too long, 503 too many wait, 500 the operation failed.
#pragma once

#include "http/http_server.h"
#include "http/service.h"
#include "http/service_metrics.h"

namespace ckpt {

/// Any thread. Lives as long as the server that calls it.
class ServiceRoutes {
 public:
  explicit ServiceRoutes(Service& service) : service_(service) {}

  ServerAnswer handle(const ServerRequest& request);

 private:
  Service& service_;
  ServiceMetrics metrics_;
};

/// The OpenAPI 3.0 description of the API, as JSON.
std::string service_openapi();

}  // namespace ckpt
