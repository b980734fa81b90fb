// The two processes of a rank: the parameter server, and the engine's worker beside it.
#pragma once

#include "checkpoint_engine/status.h"
#include "device/device.h"
#include "trial/settings.h"
#include "trial/weights.h"

namespace ckpt::bench {

/// Runs a rank to its end; the result goes to Settings::result_fd as one line of JSON.
Status run_rank(const Settings& settings);
/// Serves its rank until that hangs up.
Status run_worker(const Settings& settings);

/// The one that Settings::role names.
Status run_role(const Settings& settings);

/// The device of this process.
Result<std::shared_ptr<Device>> open_device(const Settings& settings);
int ordinal_of(const Settings& settings);
int threads_of(const Settings& settings);
Weights weights_of(const Settings& settings);

/// Processor seconds of this process so far.
double cpu_seconds();

}  // namespace ckpt::bench
