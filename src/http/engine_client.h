// A running inference engine, as seen over HTTP: is it ready, and now take new weights.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"
#include "http/endpoint.h"
#include "http/engine_answer.h"
#include "http/http_client.h"

namespace ckpt {

/// What an engine is asked to do around an update.
struct EngineUpdateOptions {
  /// Given to the engine as the name of the weights that it now holds.
  std::optional<std::string> weight_version;
  /// vLLM: POST /reset_prefix_cache afterwards, since cached prefixes are of the old weights.
  /// SGLang always does (flush_cache). Running requests that hold some of them start over.
  bool reset_prefix_cache = false;
  /// vLLM: POST /pause with this mode ("wait", "keep", "abort") before and /resume afterwards,
  /// whether the update succeeded or not. Empty: the engine is not paused.
  std::string pause_mode;
  /// vLLM through a worker extension: where that call is posted.
  std::string rpc_path = "/collective_rpc";
  /// Put behind the path of the call that carries the addresses: "" or "?name=value".
  std::string query;
  /// Raised: nothing is tidied up in the engine behind a failure any more, somebody waits for our
  /// end. May be null.
  std::shared_ptr<AbortSignal> interrupt;
};

/// What an engine answered to one call.
struct EngineAnswered {
  std::string engine;  ///< its endpoint
  std::string path;
  int status = 0;
  double seconds = 0;
  std::string body;  ///< its beginning, at most 500 bytes
};

/// Immutable; all methods from any thread. Errors are one line that names the engine, the call and
/// what to do.
class EngineClient {
 public:
  using Observer = std::function<void(const EngineAnswered&)>;

  /// `observer` may be empty; it is told of every answer of call(), on that thread.
  EngineClient(EngineKind kind, Endpoint endpoint, std::string bearer_token = {},
               Observer observer = {});

  const Endpoint& endpoint() const { return endpoint_; }

  /// Asks GET /health (vLLM) or /ping (SGLang) until the answer is 200, also while nobody listens
  /// yet: engines take minutes to start. A 503 of SGLang will do, which gives no other until it has
  /// weights, and so will one whose JSON says `"accepts_update": true`, as a receiver of ours does.
  /// At the deadline the error is the last answer's.
  Status wait_ready(Deadline deadline, const AbortSignal& abort) const;

  /// Tells the engine to take its weights from `addresses` (worker key -> address), and returns
  /// when all of its workers have: with their error if one failed.
  Status update_weights(const std::map<std::string, std::string>& addresses,
                        const EngineUpdateOptions& options, Deadline deadline,
                        const AbortSignal& abort) const;

  /// Any other call; the answer's body, when it is a success. `json_body` may be empty.
  Result<std::string> call(const std::string& method, const std::string& path,
                           const std::string& json_body, Deadline deadline,
                           const AbortSignal& abort) const;

 private:
  /// Tidying up behind an update that failed; the engine may still be busy with it.
  static constexpr std::chrono::seconds kTidyTime{3};

  Status update_vllm(const std::map<std::string, std::string>& addresses,
                     const EngineUpdateOptions& options, Deadline deadline,
                     const AbortSignal& abort) const;
  Status update_by_extension(const std::map<std::string, std::string>& addresses,
                             const EngineUpdateOptions& options, Deadline deadline,
                             const AbortSignal& abort) const;
  Status update_sglang(const std::map<std::string, std::string>& addresses,
                       const EngineUpdateOptions& options, Deadline deadline,
                       const AbortSignal& abort) const;
  Status update_by_weight_transfer(const std::map<std::string, std::string>& addresses,
                                   const EngineUpdateOptions& options, Deadline deadline,
                                   const AbortSignal& abort) const;
  Status start_session(const char* path, bool several_workers, Deadline deadline,
                       const AbortSignal& abort) const;
  void end_session(bool several_workers, Deadline deadline, const AbortSignal& interrupt) const;
  static const AbortSignal& interrupt_of(const EngineUpdateOptions& options);
  Result<HttpResponse> ask(const HttpRequest& request, Deadline deadline,
                           const AbortSignal& abort) const;
  void forget_answers(const std::string& path, const std::string& nothing, Deadline deadline,
                      const AbortSignal& interrupt) const;
  Result<bool> has_draft_model(Deadline deadline, const AbortSignal& abort) const;
  Status check_version(const std::string& version, Deadline deadline,
                       const AbortSignal& abort) const;
  Status name_weights(const std::string& version, Deadline deadline,
                      const AbortSignal& abort) const;
  Status reset_prefix_cache(Deadline deadline, const AbortSignal& abort) const;
  Status after_vllm_update(const EngineUpdateOptions& options, Deadline deadline,
                           const AbortSignal& abort) const;

  EngineKind kind_;
  Endpoint endpoint_;
  std::string bearer_token_;
  Observer observer_;
};

}  // namespace ckpt
