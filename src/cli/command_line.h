// The command line: which subcommand, with which options.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/bench_command.h"
#include "cli/hub_command.h"
#include "cli/inspect_command.h"
#include "cli/make_checkpoint_command.h"
#include "cli/receive_command.h"
#include "cli/serve_command.h"
#include "cli/update_command.h"

namespace ckpt {

/// What --help and --version print, or why the command line is refused.
struct CommandLineText {
  std::string text;
  bool refused = false;
};

using CommandLine =
    std::variant<CommandLineText, UpdateCommand, ReceiveCommand, MakeCheckpointCommand,
                 InspectCommand, HubCommand, BenchCommand, ServeCommand>;

/// `arguments` without the program's name. Pure.
CommandLine parse_command_line(const std::vector<std::string>& arguments);

}  // namespace ckpt
