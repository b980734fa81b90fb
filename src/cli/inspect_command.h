// checkpoint-engine inspect: what a file or a checkpoint holds.
#pragma once

#include <string>
#include <vector>

namespace ckpt {

struct InspectCommand {
  std::vector<std::string> paths;
  bool json = false;
  bool list_tensors = false;
  bool network = false;  ///< instead of paths
  int ranks = 0;         ///< for `network`; 0: not given
};

/// 0 when all are valid; 2 when one is refused, with a line that names file, tensor and reason.
int run(const InspectCommand& command);

}  // namespace ckpt
