#include "control/rendezvous.h"

#include <algorithm>
#include <array>

#include "base/env.h"
#include "base/strings.h"

namespace ckpt {
namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
};

constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK"},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

constexpr int kMaxWorldSize = 1 << 16;

std::optional<std::string> variable(const Environment& environment, const char* name) {
  std::optional<std::string> text = environment(name);
  if (text && trim(*text).empty()) text.reset();
  return text;
}

Result<std::optional<int>> number(const Environment& environment, const char* name, int limit) {
  const auto text = variable(environment, name);
  if (!text) return std::optional<int>();
  const Result<std::int64_t> value = parse_int(trim(*text));
  if (!value || *value < 0 || *value > limit) {
    return invalid_argument(concat("environment variable ", name, "=", quoted(*text),
                                   " is not a whole number from 0 to ", limit));
  }
  return std::optional<int>(static_cast<int>(*value));
}

Status check(const Rendezvous& who) {
  if (who.world_size < 1 || who.world_size > kMaxWorldSize) {
    return invalid_argument(concat("world size ", who.world_size, " (from ", who.source,
                                   ") is not between 1 and ", kMaxWorldSize));
  }
  if (who.rank < 0 || who.rank >= who.world_size) {
    return invalid_argument(concat("rank ", who.rank, " (from ", who.source,
                                   ") is not between 0 and ", who.world_size - 1,
                                   ", the world size less one"));
  }
  if (who.local_rank && (*who.local_rank < 0 || *who.local_rank >= who.world_size)) {
    return invalid_argument(concat("local rank ", *who.local_rank, " (from ", who.source,
                                   ") does not fit a job of ", who.world_size, " ranks"));
  }
  return Status::ok();
}

/// Null: no launcher has set anything.
const Launcher* find_launcher(const Environment& environment) {
  const auto at = std::find_if(kLaunchers.begin(), kLaunchers.end(), [&](const Launcher& launcher) {
    return variable(environment, launcher.rank) || variable(environment, launcher.size);
  });
  return at == kLaunchers.end() ? nullptr : &*at;
}

Result<LaunchedRank> read_launcher(const Launcher& launcher, const Environment& environment) {
  LaunchedRank said;
  CKPT_ASSIGN_OR_RETURN(said.rank, number(environment, launcher.rank, kMaxWorldSize));
  CKPT_ASSIGN_OR_RETURN(said.world_size, number(environment, launcher.size, kMaxWorldSize));
  CKPT_ASSIGN_OR_RETURN(said.local_rank, number(environment, launcher.local_rank, kMaxWorldSize));
  return said;
}

Status take_from_launcher(const Environment& environment, Rendezvous& who) {
  const Launcher* launcher = find_launcher(environment);
  if (launcher == nullptr) return Status::ok();
  CKPT_ASSIGN_OR_RETURN(const LaunchedRank said, read_launcher(*launcher, environment));
  if (!said.rank || !said.world_size) {
    return invalid_argument(concat("environment variable ",
                                   said.rank ? launcher->rank : launcher->size, " is set, but ",
                                   said.rank ? launcher->size : launcher->rank,
                                   " is not: set both, or give rank and world size as options"));
  }
  who.rank = *said.rank;
  who.world_size = *said.world_size;
  who.local_rank = said.local_rank;
  who.source = launcher->name;
  return Status::ok();
}

Status find_rank(const RendezvousOptions& options, const Environment& environment,
                 Rendezvous& who) {
  if (options.rank.has_value() != options.world_size.has_value()) {
    return invalid_argument(
        options.rank ? concat("rank ", *options.rank, " is given without a world size")
                     : concat("world size ", *options.world_size, " is given without a rank"));
  }
  who.source = "options";
  if (options.rank) {
    who.rank = *options.rank;
    who.world_size = *options.world_size;
  } else {
    CKPT_RETURN_IF_ERROR(take_from_launcher(environment, who));
  }
  if (options.local_rank) who.local_rank = options.local_rank;
  return check(who);
}

Result<HostPort> find_hub(const RendezvousOptions& options, const Environment& environment,
                          int world_size) {
  if (options.hub) {
    Result<HostPort> hub = parse_host_port(*options.hub);
    if (!hub) return hub.status().with_context("rendezvous");
    return hub;
  }
  const auto host = variable(environment, "MASTER_ADDR");
  CKPT_ASSIGN_OR_RETURN(const auto port, number(environment, "MASTER_PORT", 65535));
  if (host.has_value() != port.has_value()) {
    return invalid_argument(concat("environment variable ", host ? "MASTER_ADDR" : "MASTER_PORT",
                                   " is set, but ", host ? "MASTER_PORT" : "MASTER_ADDR",
                                   " is not: set both, or give --rendezvous host:port"));
  }
  if (!host) {
    if (world_size == 1) return HostPort{"127.0.0.1", 0};
    return invalid_argument(concat("a job of ", world_size,
                                   " ranks needs the address of its hub: set MASTER_ADDR and "
                                   "MASTER_PORT, or give --rendezvous host:port"));
  }
  if (*port == 0 || *port == 65535) {
    return invalid_argument(concat("environment variable MASTER_PORT=", *port,
                                   ": the hub listens on the port after it, which must exist; set "
                                   "another one or give --rendezvous host:port"));
  }
  std::string_view literal = trim(*host);
  if (literal.starts_with('[') && literal.ends_with(']')) {
    literal = literal.substr(1, literal.size() - 2);
  }
  return HostPort{std::string(literal), *port + 1};
}

}  // namespace

std::string HostPort::to_string() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? concat("[", host, "]:", port) : concat(host, ":", port);
}

Result<HostPort> parse_host_port(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return invalid_argument(concat("address ", quoted(text), " ", why,
                                   ": write host:port, or [address]:port for IPv6"));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse("has no port");
  std::string_view host = text.substr(0, colon);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return refuse("has no closing bracket before its port");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return refuse("has more than one colon");
  }
  if (host.empty()) return refuse("has no host");
  if (host.find_first_of("[]/ \t\r\n") != std::string_view::npos) {
    return refuse("has characters that no host has");
  }
  const Result<std::int64_t> port = parse_int(text.substr(colon + 1));
  if (!port || *port < 0 || *port > 65535) return refuse("has no port from 0 to 65535");
  return HostPort{std::string(host), static_cast<int>(*port)};
}

Environment process_environment() { return env_string; }

Result<LaunchedRank> launched_rank(const Environment& environment) {
  const Launcher* launcher = find_launcher(environment);
  return launcher == nullptr ? LaunchedRank() : read_launcher(*launcher, environment);
}

Result<Rendezvous> resolve_rendezvous(const RendezvousOptions& options,
                                      const Environment& environment) {
  Rendezvous who;
  CKPT_RETURN_IF_ERROR(find_rank(options, environment, who));
  CKPT_ASSIGN_OR_RETURN(who.hub, find_hub(options, environment, who.world_size));
  return who;
}

}  // namespace ckpt
