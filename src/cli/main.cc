#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include "cli/command_line.h"
#include "cli/log_output.h"
#include "cli/terminal.h"
#include "trial/roles.h"
#include "trial/settings.h"

namespace ckpt {
namespace {

LogLevel log_level(bool quiet) { return quiet ? LogLevel::kError : LogLevel::kWarning; }

struct RunCommand {
  const std::vector<std::string>& arguments;

  int operator()(const CommandLineText& text) const {
    std::fputs(text.text.c_str(), text.refused ? stderr : stdout);
    return text.refused ? kExitRefused : kExitOk;
  }
  int operator()(const UpdateCommand& command) const {
    log_to_stderr(log_level(command.quiet));
    return run(command, arguments);
  }
  int operator()(const ReceiveCommand& command) const {
    log_to_stderr(log_level(command.quiet));
    return run(command);
  }
  int operator()(const ServeCommand& command) const {
    log_to_stderr(log_level(command.quiet));
    return run(command);
  }
  template <typename Command>
  int operator()(const Command& command) const {
    log_to_stderr(log_level(false));
    return run(command);
  }
};

/// A rank or worker that `bench` has started.
int run_trial_process(const std::vector<std::string>& arguments) {
  log_to_stderr(log_level(false));
  const auto settings = bench::parse_settings(arguments);
  const Status status = settings.is_ok() ? bench::run_role(*settings) : settings.status();
  return status.is_ok() ? kExitOk : fail(status);
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  // A peer that has gone is an error of the call that notices it.
  ::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (!arguments.empty() && arguments.front() == "trial-process") {
      return ckpt::run_trial_process({arguments.begin() + 1, arguments.end()});
    }
    return std::visit(ckpt::RunCommand{arguments}, ckpt::parse_command_line(arguments));
  } catch (const std::exception& error) {
    return ckpt::fail(ckpt::internal_error(error.what()));
  }
}
