#include "cli/update_inputs.h"

#include "base/strings.h"
#include "cli/rank_options.h"
#include "cli/report_json.h"
#include "cli/secret_file.h"
#include "cli/text_file.h"
#include "control/rendezvous.h"
#include "parameter_server/metas_json.h"
#include "parameter_server/server_settings.h"

namespace ckpt {
namespace {

/// One text as it is, several as a list.
Result<std::string> read_metas(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) {
    CKPT_ASSIGN_OR_RETURN(texts.emplace_back(), read_text_file(path));
    CKPT_RETURN_IF_ERROR(metas_from_json(texts.back()).status().with_context(path));
  }
  return texts.size() == 1 ? std::move(texts[0]) : concat("[", join(texts, ","), "]");
}

Status begin_report(const std::string& path) {
  return write_text_file(path, failed_report_json(aborted("the update has not ended")))
      .with_context("--report");
}

/// Which rank of how many; the launcher stands for rank 0.
Result<Rendezvous> place_in_job(const UpdateCommand& command) {
  if (command.nproc > 0) {
    Rendezvous launcher;
    launcher.world_size = command.nproc;
    return launcher;
  }
  RendezvousOptions options;
  if (!command.rendezvous.empty()) options.hub = command.rendezvous;
  return resolve_rendezvous(options, process_environment());
}

}  // namespace

Result<UpdateInputs> read_inputs(const UpdateCommand& command) {
  CKPT_RETURN_IF_ERROR(check_command(command));
  CKPT_ASSIGN_OR_RETURN(const Rendezvous place, place_in_job(command));
  UpdateInputs inputs;
  CKPT_ASSIGN_OR_RETURN(inputs.settings, resolve_settings(command, place.world_size));
  CKPT_ASSIGN_OR_RETURN(inputs.server, server_options(command));
  inputs.server.collective_timeout_seconds = command.timeout_seconds;
  CKPT_RETURN_IF_ERROR(memory_fraction(inputs.server).status());
  CKPT_RETURN_IF_ERROR(memory_request(inputs.server, DeviceKind::kHost).status());
  CKPT_ASSIGN_OR_RETURN(inputs.api_key, read_secret_file(command.api_key_file));
  if (!command.load_metas_files.empty()) {
    CKPT_ASSIGN_OR_RETURN(inputs.metas, read_metas(command.load_metas_files));
  }
  inputs.writes_report = place.rank == 0 && !command.report_file.empty();
  if (inputs.writes_report) {
    CKPT_RETURN_IF_ERROR(begin_report(command.report_file));
  }
  return inputs;
}

}  // namespace ckpt
