// What an update reads before it asks anybody: options, files, the environment. Launcher and ranks
// read the same, so that what is wrong is refused before any rank starts.
#pragma once

#include <string>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/status.h"
#include "cli/update_command.h"
#include "cli/update_settings.h"

namespace ckpt {

struct UpdateInputs {
  ParameterServerOptions server;
  UpdateSettings settings;
  std::string api_key;  ///< of the engines; may be empty
  std::string metas;    ///< JSON of all --load-metas-file; empty without
  bool writes_report = false;
};

/// Every error is the user's to mend, and names the option, variable or file. For the rank or
/// launcher that writes the report, the file then says that the update has not ended: a path that
/// cannot be written is found out here, and no report of an earlier update is taken for this one's.
Result<UpdateInputs> read_inputs(const UpdateCommand& command);

}  // namespace ckpt
