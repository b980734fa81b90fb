// One rank as a service: what its callers may ask of it, one operation after the other, and what it
// is doing. Knows no HTTP.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "checkpoint_engine/parameter_server.h"
#include "http/operation_queue.h"
#include "http/service_requests.h"

namespace ckpt {

struct ServiceOptions {
  /// Files are registered only below one of these. Empty: any.
  std::vector<std::string> allowed_folders;
  std::string engine_token;  ///< bearer token for the engines that are called
  /// Only these are sent it. Empty: those on loopback addresses and Unix sockets, which is for
  /// services whose callers are known: by a token, or by the mode of a Unix socket.
  std::vector<Endpoint> engine_endpoints;
};

/// What the service holds and does, at one moment.
struct ServiceState {
  struct Checkpoint {
    std::string name;
    std::uint64_t tensors = 0, bytes = 0;  ///< of this rank's part
  };
  struct Update {
    std::string checkpoint;
    double seconds = 0;  ///< since it began, or that it took
    std::uint64_t loaded_bytes = 0, total_bytes = 0;
    std::vector<WorkerAddress> workers;  ///< of all ranks, once the engines are called
  };
  int rank = 0, world_size = 1;
  std::string operation;  ///< that runs now; empty: none
  std::vector<Checkpoint> checkpoints;
  std::string metas_of;          ///< the checkpoint whose metas are here; empty: none
  bool metas_loaded = false;     ///< from another job
  std::optional<Update> update;  ///< that runs now
  std::optional<Update> last_update;
  std::string last_error;  ///< of last_update; empty: it succeeded
  std::uint64_t updates_done = 0, updates_failed = 0;
  std::uint64_t loaded_bytes = 0;  ///< by this rank's worker, in all updates
};

/// Errors of the group "this call" (status.h) are the caller's to mend, kUnavailable says that too
/// many wait; an update that has failed is neither. Operations wait for those before them; an
/// update is refused while another runs or waits. All methods from any thread.
class Service {
 public:
  /// Both outlive it. The server is used by nobody else meanwhile.
  Service(ParameterServer& server, ServiceOptions options);

  /// Ok when every file may be registered here; canonical paths, symbolic links followed.
  Result<std::vector<std::string>> allowed_files(const std::vector<std::string>& files) const;
  Status register_files(const std::string& name, const std::vector<std::string>& files);
  Status unregister(const std::string& name);
  /// Collective: every rank's service is asked.
  Status gather(const std::string& name);
  /// Collective: every rank's service is asked, with the same name and ranks. Where one rank has no
  /// metas of it, all fail, with that rank's kFailedPrecondition.
  Status update(const std::string& name, const UpdateRequest& request);
  /// In the form of field_metas_json.h; "{}" when there are none.
  Result<std::string> export_metas();
  /// In that form or the one of metas_json.h.
  Status load_metas(const std::string& json);

  /// Never waits for an operation.
  ServiceState state() const;
  /// Ends what runs with `cause`, an update on every rank, and refuses what waits and comes.
  void stop(const Status& cause);

 private:
  using Clock = std::chrono::steady_clock;

  Status check_update(const std::string& name) const;
  Result<int> agree(const std::string& name, const UpdateRequest& request, Deadline deadline);
  Result<UpdateReport> run_update(const std::string& name, const UpdateRequest& request,
                                  int instance_size, Deadline deadline);
  Status call(const UpdateRequest& request, const std::vector<WorkerAddress>& all_ranks,
              EngineCallContext& context);

  std::string key_for(const Endpoint& engine) const;

  ParameterServer& server_;
  const ServiceOptions options_;
  OperationQueue queue_;
  const std::shared_ptr<AbortSignal> stop_ = std::make_shared<AbortSignal>();

  mutable std::mutex state_mutex_;
  std::map<std::string, ServiceState::Checkpoint> checkpoints_;
  ServiceState state_;  // without what is computed when it is asked for
  Clock::time_point update_begin_;
  std::atomic<std::uint64_t> progress_loaded_{0}, progress_total_{0};
};

}  // namespace ckpt
