// What the ranks of one `update` did: gathered as JSON, written as JSON, shown as a table.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// What an engine answered to this rank.
struct EngineAnswerReport {
  std::string engine, path;
  int status = 0;
  double seconds = 0;
  std::string body;  ///< its beginning
};

struct RankReport {
  int rank = 0;
  std::string host;
  std::vector<StageReport> setup;  ///< before the first update: "register", "gather", ...
  std::vector<EngineAnswerReport> engine_answers;
  std::vector<UpdateReport> updates;  ///< one, or two with --update-method all
};

}  // namespace ckpt
