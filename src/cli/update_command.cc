#include "cli/update_command.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/env.h"
#include "base/host.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "cli/launcher.h"
#include "cli/rank_update.h"
#include "cli/terminal.h"
#include "cli/update_inputs.h"
#include "control/hub.h"
#include "worker/closer.h"
#include "worker/rescue.h"

namespace ckpt {
namespace {

/// A worker that is loading hears that its rank is lost when it asks for more.
constexpr double kRescueSeconds = 60;
/// For the hub to see that the connections of killed ranks are closed.
constexpr double kHubSeconds = 5;
/// Exit codes above are a signal's number and this.
constexpr int kSignalled = 128;

/// Options behind those of the command line win over them.
std::vector<std::string> rank_arguments(const UpdateCommand& command,
                                        const std::vector<std::string>& arguments,
                                        const HostPort& hub) {
  std::vector<std::string> argv = {std::filesystem::read_symlink("/proc/self/exe").string()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  for (const std::string& more :
       {std::string("--nproc=0"), std::string("--external-hub"), std::string("--launched"),
        concat("--rendezvous=", hub.to_string()),
        concat("--job=", command.job.empty() ? random_id() : command.job)}) {
    argv.push_back(more);
  }
  return argv;
}

/// Launched ranks share a terminal: one of them says what all were told.
bool said_by_rank_0(const UpdateCommand& command, const Status& status) {
  const auto rank = env_int({"RANK"});
  if (!command.launched || !status.rank() || !rank || !*rank) return false;
  return **rank != 0 && **rank != *status.rank();
}

/// Where no rank is left that could, the launcher sets the workers of killed ones free.
void rescue_workers(const PeerLost& lost) {
  for (const PeerLost::Channel& channel : lost.channels) {
    const Status rescued = rescue_worker("", channel.address, lost.rank, lost.cause,
                                         Deadline::after_seconds(kRescueSeconds));
    if (!rescued && rescued.code() != StatusCode::kAlreadyExists) {
      log_warning("the worker of rank ", lost.rank,
                  " cannot be told that its rank is lost: ", rescued.message());
    }
  }
}

int launch(const UpdateCommand& command, const std::string& secret,
           const std::vector<std::string>& arguments) {
  // Read here too, so that a checkpoint that is refused is refused once, by one line.
  if (!command.checkpoint_path.empty()) {
    const auto files = scan_checkpoint(command.checkpoint_path);
    if (!files) return refuse(files.status());
  }
  StopSignals signals(/*children=*/true);
  // Ours, not rank 0's: it outlives every rank, and its port is nobody else's.
  HubOptions hub_options;
  hub_options.bind_host = "127.0.0.1";
  hub_options.world_size = command.nproc;
  hub_options.secret = secret;
  hub_options.heartbeat_timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(command.heartbeat_timeout_seconds * 1000));
  hub_options.on_lost = rescue_workers;
  const auto hub = Hub::start(std::move(hub_options));
  if (!hub) return fail(hub.status());
  LaunchOptions options;
  const HostPort address = (*hub)->address();
  options.argv = rank_arguments(command, arguments, address);
  options.ranks = command.nproc;
  options.environment = {concat("MASTER_ADDR=", address.host),
                         concat("MASTER_PORT=", address.port - 1)};
  const auto code = launch_ranks(options, signals);
  // A killed rank may be gone for us before it is for the hub, which only then begins the rescue.
  if (code && *code > kSignalled) {
    static_cast<void>((*hub)->wait_until_empty(Deadline::after_seconds(kHubSeconds)));
  }
  static_cast<void>(wait_for_closers("", Deadline::after_seconds(kRescueSeconds)));
  return code ? *code : fail(code.status());
}

}  // namespace

int run(const UpdateCommand& command, const std::vector<std::string>& arguments) {
  auto inputs = read_inputs(command);
  if (!inputs) return refuse(inputs.status());
  if (!command.custom_dist.empty() && !command.quiet && !command.launched) {
    say("--custom-dist has no effect: there is no torch process group here to replace");
  }
  if (command.nproc > 0) return launch(command, inputs->server.secret, arguments);
  const RankOutcome outcome = run_rank(command, std::move(*inputs));
  if (outcome.status) return kExitOk;
  if (outcome.refused) return refuse(outcome.status);
  return said_by_rank_0(command, outcome.status) ? kExitFailure : fail(outcome.status);
}

}  // namespace ckpt
