// A trial: a job of ranks and workers on this machine, each a process of its own as in a real one,
// that registers, gathers and updates, and is measured beside the machine's ceilings in the same
// run.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "checkpoint_engine/status.h"
#include "trial/settings.h"

namespace ckpt::bench {

/// The figures of the run: of all ranks the slowest or the largest, medians of the updates, and the
/// ranks' own under "by_rank". An error unless every byte has arrived.
Result<nlohmann::json> run_trial(const Settings& settings);

/// With Settings::kill_rank: an update in which that rank is killed. Says when the others had the
/// cause; then new ranks update the same workers, whose figures are under "afterwards".
Result<nlohmann::json> run_killing_trial(const Settings& settings);

}  // namespace ckpt::bench
