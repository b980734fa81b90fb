#include "cli/serve_command.h"

#include <poll.h>

#include <filesystem>

#include "base/strings.h"
#include "checkpoint_engine/parameter_server.h"
#include "cli/interrupt.h"
#include "cli/secret_file.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "control/rendezvous.h"
#include "http/service_routes.h"

namespace ckpt {
namespace {

/// Metas of 200,000 tensors take 25 MB.
constexpr std::size_t kMaxBody = 256u << 20;
/// Rank 0 runs the hub; a service that is told to stop stops.
constexpr double kHubLinger = 2;

Result<std::vector<std::string>> canonical_folders(const std::vector<std::string>& paths) {
  std::vector<std::string> folders;
  for (const std::string& path : paths) {
    std::error_code error;
    const auto folder = std::filesystem::canonical(path, error);
    if (error || !std::filesystem::is_directory(folder)) {
      return invalid_argument(concat("--allow-path ", path, ": is no folder"));
    }
    folders.push_back(folder.string());
  }
  return folders;
}

Result<HttpServerOptions> http_options(const ServeCommand& command) {
  HttpServerOptions options;
  options.max_body = kMaxBody;
  options.open_path = "/v1/healthz";
  options.quick_paths = {"/v1/healthz", "/v1/status", "/metrics", "/openapi.json"};
  CKPT_ASSIGN_OR_RETURN(options.bearer_token, read_secret_file(command.token_file));
  options.socket_path = command.uds;
  if (!command.uds.empty()) return options;
  CKPT_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port(command.listen));
  options.host = listen.host;
  options.port = listen.port;
  if (options.bearer_token.empty() && !is_loopback(options.host)) {
    return invalid_argument(
        concat("--listen ", command.listen,
               " can be reached from other hosts: give --token-file, or listen on 127.0.0.1"));
  }
  return options;
}

std::string with_rank(std::string text, int rank) {
  constexpr std::string_view kPlace = "{rank}";
  const auto at = text.find(kPlace);
  return at == std::string::npos ? text : text.replace(at, kPlace.size(), std::to_string(rank));
}

/// What is read from files and the command line, before anybody else is asked.
struct Setup {
  HttpServerOptions http;
  ParameterServerOptions server;
  ServiceOptions service;
};

Result<Setup> read_setup(const ServeCommand& command) {
  if (command.uds.empty() == command.listen.empty()) {
    return invalid_argument("give either --uds PATH or --listen HOST:PORT");
  }
  Setup setup;
  CKPT_ASSIGN_OR_RETURN(setup.http, http_options(command));
  CKPT_ASSIGN_OR_RETURN(setup.server, server_options(command));
  setup.server.hub_linger_seconds = kHubLinger;
  setup.server.collective_timeout_seconds = command.timeout_seconds;
  CKPT_ASSIGN_OR_RETURN(setup.service.allowed_folders, canonical_folders(command.allow_paths));
  CKPT_ASSIGN_OR_RETURN(setup.service.engine_token, read_secret_file(command.api_key_file));
  // Whoever reaches an unguarded port names the engine of an update.
  if (!command.listen.empty() && setup.http.bearer_token.empty() &&
      !setup.service.engine_token.empty() && command.engine_endpoints.empty()) {
    return invalid_argument(
        "--api-key-file: on TCP without a token any local user can have the key sent to a port of "
        "his own; name the engines that may have it with --engine-endpoint, or give --token-file, "
        "or serve on --uds");
  }
  for (const std::string& engine : command.engine_endpoints) {
    CKPT_ASSIGN_OR_RETURN(setup.service.engine_endpoints.emplace_back(), parse_endpoint(engine));
  }
  return setup;
}

Status serve(const ServeCommand& command, Setup setup, Interrupt& interrupt) {
  CKPT_ASSIGN_OR_RETURN(const auto server, ParameterServer::create(std::move(setup.server)));
  setup.http.socket_path = with_rank(setup.http.socket_path, server->rank());
  const Interrupt::Update until_a_signal(interrupt);
  Service service(*server, std::move(setup.service));
  ServiceRoutes routes(service);
  CKPT_ASSIGN_OR_RETURN(const auto http,
                        HttpServer::start(std::move(setup.http), [&](const ServerRequest& request) {
                          return routes.handle(request);
                        }));
  const std::string address = http->endpoint().to_string();
  if (!command.ready_file.empty()) {
    CKPT_RETURN_IF_ERROR(
        write_text_file(with_rank(command.ready_file, server->rank()), address + "\n"));
  }
  if (!command.quiet) {
    say(concat("rank ", server->rank(), " of ", server->world_size(), " serves on ", address));
  }
  pollfd wait = {interrupt.signal()->fd(), POLLIN, 0};
  while (!interrupt.signal()->raised()) ::poll(&wait, 1, -1);
  service.stop(interrupt.signal()->cause());
  http->stop();
  return Status::ok();
}

}  // namespace

int run(const ServeCommand& command) {
  auto setup = read_setup(command);
  if (!setup) return refuse(setup.status());
  Interrupt interrupt;
  const Status served = serve(command, std::move(*setup), interrupt);
  return served ? kExitOk : fail(served);
}

}  // namespace ckpt
