#include "cli/update_settings.h"

#include <numeric>

#include "base/env.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// Where the field's example program looks for its engine.
constexpr const char* kDefaultEndpoint = "http://localhost:19730";

Result<std::vector<Endpoint>> resolve_endpoints(const UpdateCommand& command) {
  std::vector<Endpoint> endpoints;
  for (const std::string& path : command.uds) {
    CKPT_ASSIGN_OR_RETURN(Endpoint endpoint, unix_endpoint(path));
    endpoints.push_back(std::move(endpoint));
  }
  if (!endpoints.empty()) return endpoints;
  for (const std::string& text : command.endpoints) {
    CKPT_ASSIGN_OR_RETURN(Endpoint endpoint, parse_endpoint(text));
    endpoints.push_back(std::move(endpoint));
  }
  if (endpoints.empty()) endpoints.push_back(*parse_endpoint(kDefaultEndpoint));
  return endpoints;
}

/// Given, else PS_INSTANCE_SIZE, else the ranks divided by the endpoints.
Result<int> resolve_instance_size(const UpdateCommand& command, int world_size,
                                  std::size_t endpoints) {
  std::int64_t size = command.inference_parallel_size;
  if (size == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto given, env_int({"PS_INSTANCE_SIZE"}));
    const auto instances = static_cast<std::int64_t>(std::max<std::size_t>(endpoints, 1));
    if (!given && world_size % instances != 0) {
      return invalid_argument(concat(world_size, " ranks cannot serve ", instances,
                                     " instances alike; give --inference-parallel-size"));
    }
    size = given ? *given : world_size / instances;
  }
  if (size < 1 || size > world_size) {
    return invalid_argument(concat("--inference-parallel-size ", size, " does not fit a job of ",
                                   world_size, world_size == 1 ? " rank" : " ranks"));
  }
  return static_cast<int>(size);
}

Status check_instances(const UpdateSettings& settings, const UpdateCommand& command,
                       int world_size) {
  const bool all_ranks = command.update_method != "p2p" || !command.load_metas_files.empty();
  if (all_ranks && world_size % settings.instance_size != 0) {
    return invalid_argument(concat(world_size, " ranks cannot be cut into instances of ",
                                   settings.instance_size, " (--inference-parallel-size)"));
  }
  const auto endpoints = settings.endpoints.size();
  const auto instances = static_cast<std::size_t>(world_size / settings.instance_size);
  if (settings.engine == EngineChoice::kNone || endpoints == instances) return Status::ok();
  // One for all: every host has an instance there. Launched ranks are all on one host.
  if (endpoints == 1 && (command.nproc == 0 || !all_ranks)) return Status::ok();
  return invalid_argument(concat(instances, " instances of ", settings.instance_size,
                                 " ranks need as many --endpoint or --uds options; ", endpoints,
                                 " given"));
}

std::vector<std::vector<int>> resolve_updates(const UpdateCommand& command, int instance_size) {
  // Whoever loads metas owns nothing: all its ranks are there to be filled.
  if (!command.load_metas_files.empty()) return {{}};
  std::vector<int> first_instance(static_cast<std::size_t>(instance_size));
  std::iota(first_instance.begin(), first_instance.end(), 0);
  if (command.update_method == "p2p") return {first_instance};
  if (command.update_method == "all") return {{}, first_instance};
  return {{}};
}

}  // namespace

Status check_command(const UpdateCommand& command) {
  if (command.checkpoint_path.empty() == command.load_metas_files.empty()) {
    return invalid_argument(
        "give either --checkpoint-path (what to register) or --load-metas-file (whose owners to "
        "read)");
  }
  if (command.fan_out && command.load_metas_files.empty()) {
    return invalid_argument(
        "--fan-out needs --load-metas-file: a job that registers can be read as it is");
  }
  if (!command.load_metas_files.empty() && !command.save_metas_file.empty() && !command.fan_out) {
    return invalid_argument(
        "--save-metas-file is for the job that registers; who loads metas has none of its own, "
        "unless it keeps what arrives (--fan-out)");
  }
  if (command.nproc > 0 && (!command.rendezvous.empty() || command.external_hub)) {
    return invalid_argument("--nproc launches a job with a hub of its own; leave --rendezvous out");
  }
  if (command.nproc > 0) return resolve_settings(command, command.nproc).status();
  CKPT_RETURN_IF_ERROR(parse_engine_choice(command.engine).status());
  return resolve_endpoints(command).status();
}

Result<UpdateSettings> resolve_settings(const UpdateCommand& command, int world_size) {
  UpdateSettings settings;
  CKPT_ASSIGN_OR_RETURN(settings.engine, parse_engine_choice(command.engine));
  if (settings.engine != EngineChoice::kNone) {
    CKPT_ASSIGN_OR_RETURN(settings.endpoints, resolve_endpoints(command));
  }
  CKPT_ASSIGN_OR_RETURN(settings.instance_size,
                        resolve_instance_size(command, world_size, settings.endpoints.size()));
  CKPT_RETURN_IF_ERROR(check_instances(settings, command, world_size));
  settings.updates = resolve_updates(command, settings.instance_size);
  return settings;
}

}  // namespace ckpt
