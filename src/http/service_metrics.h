// The service's state and counters in the text format of Prometheus.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "http/service.h"

namespace ckpt {

/// All methods from any thread.
class ServiceMetrics {
 public:
  /// Counts an answered call. `route` is its pattern ("/v1/status"), so that names of checkpoints
  /// do not become labels.
  void count_call(const std::string& route, int status);
  /// Everything, as of now.
  std::string text(const ServiceState& state) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> calls_;
};

}  // namespace ckpt
