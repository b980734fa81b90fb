#include "cli/hub_command.h"

#include <chrono>

#include "base/deadline.h"
#include "base/strings.h"
#include "cli/secret_file.h"
#include "cli/stop_signals.h"
#include "cli/terminal.h"
#include "control/hub.h"

namespace ckpt {

int run(const HubCommand& command) {
  const auto listen = parse_host_port(command.listen);
  if (!listen) return refuse(listen.status().with_context("--listen"));
  const auto secret = read_secret_file(command.secret_file);
  if (!secret) return refuse(secret.status());
  StopSignals signals;
  HubOptions options;
  options.bind_host = listen->host;
  options.port = listen->port;
  options.job = command.job;
  options.world_size = command.world_size;
  options.secret = *secret;
  options.heartbeat_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(command.heartbeat_timeout_seconds));
  const auto hub = Hub::start(std::move(options));
  if (!hub) return fail(hub.status());
  say(concat("hub: listening on ", (*hub)->address().to_string()));
  while (!(*hub)->wait_until_empty(Deadline::after_seconds(0.2))) {
    // Ranks that are still there are told by the closing connection.
    if (const auto signal = signals.take()) return 128 + signal->number;
  }
  say("hub: all ranks have left");
  return kExitOk;
}

}  // namespace ckpt
