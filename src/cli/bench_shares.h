// How much of what the machine can do an update reaches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "cli/ceilings.h"
#include "device/device.h"

namespace ckpt {

struct Share {
  std::string what;  ///< "update, verified", "loading", ...
  std::string with;
  double gb_per_s = 0;
  std::string ceiling;  ///< what bounds it
  double ceiling_gb_per_s = 0;

  double share() const { return ceiling_gb_per_s > 0 ? gb_per_s / ceiling_gb_per_s : 0; }
};

struct ShareOptions {
  DeviceKind device = DeviceKind::kHost;
  int devices = 1;
  std::uint64_t bytes = 0;  ///< of the checkpoint; 0: as suits the device
};

/// Runs updates of a synthetic checkpoint on this machine, one rank and one worker (processes of
/// this program) for each device: with the chunk size that is the default, and on GPUs with others.
/// `ceilings`: of measure_ceilings, in the same run. Some seconds for each.
Result<std::vector<Share>> measure_shares(const std::vector<Ceiling>& ceilings,
                                          const ShareOptions& options);

}  // namespace ckpt
