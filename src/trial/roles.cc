#include "trial/roles.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/parallel.h"
#include "base/strings.h"
#include "trial/processes.h"

namespace ckpt::bench {

Status run_role(const Settings& settings) {
  if (settings.role == "rank") return run_rank(settings);
  if (settings.role == "worker") return run_worker(settings);
  return invalid_argument("a process of a trial is a rank or a worker");
}

int ordinal_of(const Settings& settings) {
  return settings.isolate ? 0 : settings.rank % settings.gpus;
}

Result<std::shared_ptr<Device>> open_device(const Settings& settings) {
  if (settings.device == "host") return make_host_device(threads_of(settings));
  return make_cuda_device(ordinal_of(settings));
}

int threads_of(const Settings& settings) {
  return std::max(1, available_processors() / settings.ranks);
}

Weights weights_of(const Settings& settings) {
  if (settings.tensors > 0) {
    return Weights::equal(settings.tensors, *parse_bytes(settings.tensor_bytes),
                          threads_of(settings));
  }
  return Weights::of_model(static_cast<std::uint64_t>(settings.gib * (1 << 30)), settings.experts,
                           settings.shrink, threads_of(settings));
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace ckpt::bench
