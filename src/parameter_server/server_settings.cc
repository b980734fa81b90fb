#include "parameter_server/server_settings.h"

#include "base/env.h"
#include "base/strings.h"
#include "device/cuda/driver.h"

namespace ckpt {
namespace {

// A copy engine wants large chunks. A processor wants what it copies to be in its caches when the
// worker copies it again.
constexpr std::uint64_t kCudaChunk = 32 << 20;
constexpr std::uint64_t kHostChunk = 8 << 20;
constexpr std::uint64_t kHostBucket = 32 << 20;
constexpr std::uint64_t kSmallestBucket = 4096;

}  // namespace

Result<std::shared_ptr<Device>> open_device(const std::string& wanted, int local_rank,
                                            int copy_threads) {
  if (wanted == "host") return make_host_device(copy_threads);
  if (wanted == "auto" || wanted == "cuda") {
    // A driver that cannot be used is an error for auto too: whoever has GPUs wants them.
    CKPT_ASSIGN_OR_RETURN(const int gpus, find_gpus());
    if (wanted == "auto" && gpus == 0) return make_host_device(copy_threads);
    return make_cuda_device(gpus > 0 ? local_rank % gpus : 0);
  }
  return invalid_argument(concat("no device ", quoted(wanted), "; there are auto, host and cuda"));
}

std::string SpreadChoice::planned_host(const std::string& host_id, int rank) const {
  return ranks_are_hosts ? concat(host_id, " rank ", rank) : host_id;
}

Result<SpreadChoice> spread_choice(const std::string& collective, DeviceKind device) {
  const bool host = device == DeviceKind::kHost;
  if (collective == "auto") {
    return SpreadChoice{host ? RingSharing::kPerHost : RingSharing::kPerRank};
  }
  if (collective == "peer" || collective == "nccl") return SpreadChoice{RingSharing::kPerRank};
  if (collective == "chain") {
    if (host) return SpreadChoice{RingSharing::kPerHost};
    return SpreadChoice{RingSharing::kPerRank, true};
  }
  return invalid_argument(
      concat("no collective ", quoted(collective), "; there are auto, peer, nccl and chain"));
}

Result<std::shared_ptr<const NcclApi>> nccl_for(DeviceKind device) {
  auto nccl = load_nccl();
  const bool host_memory = nccl && (*nccl)->works_on_host_memory;
  if (device == DeviceKind::kHost && !host_memory) {
    return unsupported("NCCL works between GPUs only: use collective auto on device host");
  }
  return nccl;
}

Result<double> memory_fraction(const ParameterServerOptions& options) {
  double fraction = options.memory_fraction;
  if (fraction == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto from_environment, env_double("PS_MEM_FRACTION"));
    fraction = from_environment.value_or(0.9);
  }
  if (!(fraction > 0 && fraction <= 1)) {
    return invalid_argument(
        concat("a memory fraction of ", fraction, " (PS_MEM_FRACTION) is not in (0, 1]"));
  }
  return fraction;
}

Result<MemoryRequest> memory_request(const ParameterServerOptions& options, DeviceKind device) {
  MemoryRequest request;
  request.ring_bytes = options.ring_bytes;
  request.bucket_bytes = options.bucket_bytes;
  request.chunk_bytes = options.chunk_bytes;
  if (options.overlap != "auto" && options.overlap != "on" && options.overlap != "off") {
    return invalid_argument(
        concat("no overlap ", quoted(options.overlap), "; there are auto, on and off"));
  }
  request.overlap = options.overlap != "off";
  if (request.bucket_bytes == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto gib, env_double("PS_MAX_BUCKET_SIZE_GB"));
    if (gib) {
      const double bytes = *gib * (1ull << 30);
      if (!(bytes >= kSmallestBucket && bytes < 9e18)) {
        return invalid_argument(concat("PS_MAX_BUCKET_SIZE_GB=", *gib,
                                       " is not a size of at least ",
                                       format_bytes(kSmallestBucket)));
      }
      request.bucket_bytes = static_cast<std::uint64_t>(bytes);
    }
  }
  if (device == DeviceKind::kHost && request.bucket_bytes == 0 && request.ring_bytes == 0) {
    request.bucket_bytes = kHostBucket;
  }
  if (request.chunk_bytes == 0)
    request.chunk_bytes = device == DeviceKind::kHost ? kHostChunk : kCudaChunk;
  return request;
}

}  // namespace ckpt
