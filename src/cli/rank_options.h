// How a rank finds its job and moves weights: the options that `update` and `serve` share.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint_engine/parameter_server.h"

namespace ckpt {

/// As given; empty and 0 mean what ParameterServerOptions says of them.
struct RankOptions {
  std::string rendezvous;
  std::string advertise;
  bool external_hub = false;
  std::string job;  ///< empty: "default", or a random one where ranks are launched
  std::string secret_file;
  double join_timeout_seconds = 0;
  double heartbeat_timeout_seconds = 5;

  std::string device = "auto";
  std::string collective = "auto";
  bool release_communicators = false;
  bool keep_buffers = false;
  std::string overlap = "auto";
  std::uint64_t ring_bytes = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t chunk_bytes = 0;
};

/// Reads the secret's file.
Result<ParameterServerOptions> server_options(const RankOptions& given);

}  // namespace ckpt
