// What the ranks of one `update` did: gathered as JSON, written as JSON, shown as a table.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

struct RankReport {
  int rank = 0;
  std::string host;
  std::vector<StageReport> setup;     ///< before the first update: "register", "gather", ...
  std::vector<UpdateReport> updates;  ///< one, or two with --update-method all
};

}  // namespace ckpt
