#include "cli/terminal.h"

#include <cstdio>
#include <string>

#include "base/strings.h"

namespace ckpt {
namespace {

/// In one piece, so that lines of several ranks do not mix.
void write_line(std::FILE* file, std::string line) {
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), file);
  std::fflush(file);
}

}  // namespace

void say(std::string_view line) { write_line(stdout, std::string(line)); }

int fail(const Status& status) {
  const auto rank = status.rank();
  write_line(stderr, concat("checkpoint-engine: error: ", rank ? concat("rank ", *rank, ": ") : "",
                            status.message()));
  return kExitFailure;
}

int refuse(const Status& status) {
  fail(status);
  return kExitRefused;
}

}  // namespace ckpt
