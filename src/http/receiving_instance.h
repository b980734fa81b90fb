// A receiving instance: workers that load into their own memory, updated together, as an inference
// engine's are.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint_engine/receiver.h"
#include "checkpoint_engine/status.h"
#include "http/worker_memory.h"

namespace ckpt {

/// update_weights, or a test's stand-in for it.
using UpdateWeights = std::function<Result<ReceiveReport>(const std::string& address,
                                                          Loader& loader, const ReceiverOptions&)>;

struct InstanceOptions {
  /// One worker each: "CPU-0", "CPU-1", ...
  std::vector<std::string> worker_keys;
  ReceiverOptions receiver;
  UpdateWeights update_weights;
};

/// What one update brought, for each worker in their order.
struct InstanceReport {
  std::vector<ReceiveReport> workers;
  double seconds = 0;
};

/// All methods from any thread.
class ReceivingInstance {
 public:
  explicit ReceivingInstance(InstanceOptions options);

  int workers() const { return static_cast<int>(options_.worker_keys.size()); }
  /// Runs one update on all workers, a thread each, and returns when all have ended. `addresses`
  /// must name exactly this instance's workers (kInvalidArgument, nothing touched).
  /// kFailedPrecondition while another update runs. Else the first failing worker's error, with its
  /// key.
  Result<InstanceReport> update(const std::map<std::string, std::string>& addresses,
                                double timeout_seconds);
  /// Ok when every worker holds complete weights; else the reason, also while an update writes over
  /// them. Never waits.
  Status health() const;
  bool updating() const;
  /// Runs `body` with the memory of all workers, in their order; no update runs meanwhile.
  Status with_memory(
      const std::function<Status(const std::vector<const WorkerMemory*>& workers)>& body);

 private:
  Status check_keys(const std::map<std::string, std::string>& addresses) const;
  Result<InstanceReport> update_workers(const std::map<std::string, std::string>& addresses,
                                        double timeout_seconds);

  const InstanceOptions options_;
  std::mutex memory_mutex_;  // held for a whole update
  std::vector<std::unique_ptr<WorkerMemory>> memory_;
  mutable std::mutex state_mutex_;
  bool updating_ = false;
  Status health_;
};

}  // namespace ckpt
