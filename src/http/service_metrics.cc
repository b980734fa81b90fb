#include "http/service_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <sstream>
#include <vector>

namespace ckpt {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Families {
 public:
  /// Begins a family; what is added afterwards belongs to it.
  void begin(const char* name, const char* help, MetricType type) {
    families_.push_back({std::string("checkpoint_engine_") + name, help, type, {}});
  }
  void add(double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void gauge(const char* name, const char* help, double value) {
    begin(name, help, MetricType::Gauge);
    add(value);
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  std::vector<MetricFamily> families_;
};

double number(std::uint64_t value) { return static_cast<double>(value); }

}  // namespace

void ServiceMetrics::count_call(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++calls_[{route, status}];
}

std::string ServiceMetrics::text(const ServiceState& state) const {
  std::uint64_t bytes = 0;
  for (const auto& checkpoint : state.checkpoints) bytes += checkpoint.bytes;
  Families all;
  all.gauge("rank", "Rank of this process in its job", state.rank);
  all.gauge("world_size", "Ranks of the job", state.world_size);
  all.gauge("registered_checkpoints", "Checkpoints of which this rank holds a part",
            number(state.checkpoints.size()));
  all.gauge("registered_bytes", "Bytes of weights in this rank's host memory", number(bytes));
  all.gauge("update_running", "1 while an update runs", state.update ? 1 : 0);
  all.gauge("last_update_seconds", "What the last update took",
            state.last_update ? state.last_update->seconds : 0);
  all.begin("updates_total", "Updates by outcome", MetricType::Counter);
  all.add(number(state.updates_done), {{"outcome", "ok"}});
  all.add(number(state.updates_failed), {{"outcome", "failed"}});
  all.begin("loaded_bytes_total", "Bytes that this rank's worker has loaded", MetricType::Counter);
  all.add(number(state.loaded_bytes));
  all.begin("http_requests_total", "Answered calls", MetricType::Counter);
  const std::lock_guard lock(mutex_);
  for (const auto& [call, count] : calls_) {
    all.add(number(count), {{"route", call.first}, {"status", std::to_string(call.second)}});
  }
  return all.text();
}

}  // namespace ckpt
