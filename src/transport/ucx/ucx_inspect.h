// What the UCX of this machine can do, for people.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt {

struct UcxAbilities {
  std::string version;
  std::vector<std::string> resources;  ///< transport/device, e.g. "tcp/eth0", "rc_mlx5/mlx5_0:1"
  std::vector<std::string> memory;     ///< "host", "cuda"
  Status reads_into_gpus;              ///< ok, or why what is read goes through host memory
};

/// kUnsupported as make_ucx_transport.
Result<UcxAbilities> inspect_ucx(const UcxOptions& options);

}  // namespace ckpt
