// One rank of `update`: joins the job, registers its part, and updates the engines with the others.
#pragma once

#include "checkpoint_engine/status.h"
#include "cli/update_command.h"
#include "cli/update_inputs.h"

namespace ckpt {

struct RankOutcome {
  Status status;
  bool refused = false;  ///< the checkpoint itself is not valid; no engine was touched
};

/// Blocking; on the main thread, before any other thread exists. Rank 0 prints and writes the
/// report.
RankOutcome run_rank(const UpdateCommand& command, UpdateInputs inputs);

}  // namespace ckpt
