// What the options of a server come to on this machine: the caller's wish, else the environment's,
// else what suits the device.
#pragma once

#include <memory>
#include <string>

#include "checkpoint_engine/parameter_server.h"
#include "collective/nccl/nccl_api.h"
#include "device/device.h"
#include "plan/plan.h"

namespace ckpt {

/// "auto" is cuda where there is a GPU, this rank's being number `local_rank` (modulo their count).
/// `copy_threads`: of the host device.
Result<std::shared_ptr<Device>> open_device(const std::string& wanted, int local_rank,
                                            int copy_threads);

/// How weights come from rank to rank.
struct SpreadChoice {
  /// Who has a ring: on GPUs every rank, on the host all ranks together, unless the caller wants it
  /// otherwise.
  RingSharing sharing = RingSharing::kPerRank;
  /// The plan takes every rank for a host of its own, so that all that they take from each other
  /// goes by the chain.
  bool ranks_are_hosts = false;

  /// Of `rank` on the host `host_id`, as the plan sees it.
  std::string planned_host(const std::string& host_id, int rank) const;
};
Result<SpreadChoice> spread_choice(const std::string& collective, DeviceKind device);

/// NCCL for collective `nccl`. kUnsupported on device host, which only a stand-in of tests can do.
Result<std::shared_ptr<const NcclApi>> nccl_for(DeviceKind device);

/// The share of the free memory that an update may take; in (0, 1].
Result<double> memory_fraction(const ParameterServerOptions& options);

/// Sizes of ring, bucket and chunk; zero where the plan may choose.
Result<MemoryRequest> memory_request(const ParameterServerOptions& options, DeviceKind device);

}  // namespace ckpt
