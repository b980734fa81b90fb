// checkpoint-engine serve: one rank of a job as a service, for trainers that speak HTTP.
#pragma once

#include <string>
#include <vector>

#include "cli/rank_options.h"

namespace ckpt {

struct ServeCommand : RankOptions {
  ServeCommand() { join_timeout_seconds = 60; }  // services are started one by one

  std::string uds;     ///< Unix socket; "{rank}" in it stands for the rank
  std::string listen;  ///< "host:port" instead; port 0: the kernel chooses
  std::string token_file;
  std::vector<std::string> allow_paths;
  std::string api_key_file;
  std::vector<std::string> engine_endpoints;
  std::string ready_file;  ///< written with the address once calls are taken

  double timeout_seconds = 600;  ///< for other ranks to come to a gather

  bool quiet = false;
};

/// Serves until a signal: 0. A running update then fails on every rank.
int run(const ServeCommand& command);

}  // namespace ckpt
