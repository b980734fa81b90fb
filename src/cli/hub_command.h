// checkpoint-engine hub: the control plane of one job on its own.
#pragma once

#include <optional>
#include <string>

namespace ckpt {

struct HubCommand {
  std::string listen;  ///< "host:port"
  std::optional<std::string> job;
  std::optional<int> world_size;
  std::string secret_file;
  double heartbeat_timeout_seconds = 5;
};

/// Serves until all ranks that joined have left (0), or a signal ends it.
int run(const HubCommand& command);

}  // namespace ckpt
