// What the options of `update` mean for a job of so many ranks.
#pragma once

#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/status.h"
#include "cli/update_command.h"
#include "http/engine_calls.h"

namespace ckpt {

/// What can be told before any rank has joined.
struct UpdateSettings {
  EngineChoice engine = EngineChoice::kVllm;
  std::vector<Endpoint> endpoints;  ///< empty with kNone
  int instance_size = 0;            ///< ranks of an inference engine
  /// Recipients of each update in turn; empty: all ranks.
  std::vector<std::vector<int>> updates;
};

/// Refuses (kInvalidArgument) what does not fit together, and what does not fit `world_size`.
/// Reads the environment (PS_INSTANCE_SIZE).
Result<UpdateSettings> resolve_settings(const UpdateCommand& command, int world_size);

/// Refuses what is wrong whatever the number of ranks is.
Status check_command(const UpdateCommand& command);

}  // namespace ckpt
