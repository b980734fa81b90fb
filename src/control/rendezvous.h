// Who am I: rank, size of the job and the hub's address, from options or from the launcher's
// variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// A TCP address; the host is a name or a literal, an IPv6 literal without its brackets.
struct HostPort {
  std::string host;
  int port = 0;

  /// "host:port", with brackets around an IPv6 literal.
  std::string to_string() const;
  bool operator==(const HostPort&) const = default;
};

/// "host:port" or "[v6]:port", port 0 to 65535. A bare IPv6 literal is refused: its port cannot be
/// told apart.
Result<HostPort> parse_host_port(std::string_view text);

/// What the user said on the command line or in the call; 0 is a value, nullopt is "not said".
struct RendezvousOptions {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
  std::optional<std::string> hub;  ///< --rendezvous host:port
};

struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  /// Number of this rank among those of its host; nullopt when nobody said it.
  std::optional<int> local_rank;
  HostPort hub;
  std::string source;  ///< where rank and size come from, for messages: "options", "torchrun", ...
};

/// Like getenv: nullopt when unset. An empty variable counts as unset.
using Environment = std::function<std::optional<std::string>(const char* name)>;
/// The environment of this process.
Environment process_environment();

/// What the launcher of this process says in its variables, as far as it says anything.
struct LaunchedRank {
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
};

/// Of the first launcher that resolve_rendezvous knows and that has set a rank or a size. An error
/// names the variable that is no number.
Result<LaunchedRank> launched_rank(const Environment& environment);

/// Rank and size: options, else torchrun (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI
/// (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK) or Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID);
/// the first of these that is set at all is the one, and setting it by half is an error that names
/// what is missing. Hub: options, else MASTER_ADDR and MASTER_PORT + 1, else for a job of one rank
/// 127.0.0.1 and a port of the kernel's choice (0). Reads nothing but `environment`.
Result<Rendezvous> resolve_rendezvous(const RendezvousOptions& options,
                                      const Environment& environment);

}  // namespace ckpt
