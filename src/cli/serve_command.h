// checkpoint-engine serve: one rank of a job as a service, for trainers that speak HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt {

struct ServeCommand {
  std::string uds;     ///< Unix socket; "{rank}" in it stands for the rank
  std::string listen;  ///< "host:port" instead; port 0: the kernel chooses
  std::string token_file;
  std::vector<std::string> allow_paths;
  std::string api_key_file;
  std::string ready_file;  ///< written with the address once calls are taken

  std::string rendezvous;
  bool external_hub = false;
  std::string job;  ///< empty: "default"
  std::string secret_file;
  double timeout_seconds = 600;  ///< for other ranks to come to a gather

  std::string device = "auto";
  std::string collective = "auto";
  bool release_communicators = false;
  std::string overlap = "auto";
  std::uint64_t ring_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  bool quiet = false;
};

/// Serves until a signal: 0. A running update then fails on every rank.
int run(const ServeCommand& command);

}  // namespace ckpt
