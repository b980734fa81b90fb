// The HTTP face of a receiving instance: vLLM's and SGLang's calls for new weights.
//
//   GET  /health                    200, or 503 with the reason while the weights are incomplete
//   GET  /ping                      200
//   POST /collective_rpc            vLLM's form; 200 {"results": [null, ...]}
//   POST /update_weights_from_ipc   SGLang's form; 200 or 400 {"success": bool, "message": text}
//
// Errors are {"error": {"message": ..., "code": status}}: 400 for a body that is not understood,
// 409 while another update runs, 500 for an update that failed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint_engine/status.h"
#include "http/endpoint.h"
#include "http/receiving_instance.h"

namespace ckpt {

struct ReceiveServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;             ///< 0: the kernel chooses
  std::string socket_path;  ///< a Unix socket instead (mode 0600); a stale one is replaced
  /// After each update, before it is answered. On a thread of the server.
  std::function<void(const Result<InstanceReport>&)> on_update;
};

/// Serves from start() until stop(). All methods from any thread.
class ReceiveServer {
 public:
  /// Listens on return. kUnavailable when the address is taken. `instance` must outlive the server.
  static Result<std::unique_ptr<ReceiveServer>> start(ReceiveServerOptions options,
                                                      ReceivingInstance& instance);
  ~ReceiveServer();
  ReceiveServer(const ReceiveServer&) = delete;
  ReceiveServer& operator=(const ReceiveServer&) = delete;

  /// With the real port.
  const Endpoint& endpoint() const;
  /// Takes no further connection, and returns when every call under way has been answered. Again is
  /// fine.
  void stop();

 private:
  class Impl;
  explicit ReceiveServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckpt
