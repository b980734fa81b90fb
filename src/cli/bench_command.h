// checkpoint-engine bench: what this machine can do, and how much of it an update reaches.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt {

struct BenchCommand {
  std::string device = "auto";       ///< "auto", "host", "cuda": all GPUs that are visible
  std::uint64_t bytes = 1ull << 30;  ///< of each buffer
  double seconds = 0.3;              ///< for each figure
  bool no_update = false;            ///< the machine alone
  std::uint64_t update_bytes = 0;    ///< of the checkpoint; 0: 4 GiB on GPUs, 256 MiB on host
  int threads = 0;                   ///< 0: one for each processor, at most 16
  bool json = false;
};

/// Prints a table, or JSON.
int run(const BenchCommand& command);

}  // namespace ckpt
