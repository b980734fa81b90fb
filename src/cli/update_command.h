// checkpoint-engine update: puts a checkpoint into running inference engines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/rank_options.h"

namespace ckpt {

/// The options as given; update_settings.h says what they mean together.
struct UpdateCommand : RankOptions {
  // Under the names of the field's example program.
  std::string checkpoint_path;
  std::string checkpoint_name;  ///< empty: not given
  std::string save_metas_file;
  std::vector<std::string> load_metas_files;
  bool fan_out = false;
  double sleep_seconds = 0;
  std::vector<std::string> endpoints;
  std::vector<std::string> uds;
  int inference_parallel_size = 0;  ///< 0: not given
  std::string update_method = "broadcast";
  std::string custom_dist;

  std::string engine = "vllm";
  std::string api_key_file;
  bool reset_prefix_cache = false;
  std::string weight_version;
  std::string pause;

  std::string split = "tensors";
  bool in_place = false;
  double timeout_seconds = 300;
  double register_timeout_seconds = 3600;
  bool verify = true;

  int nproc = 0;          ///< ranks to launch; 0: this process is a rank
  bool launched = false;  ///< by our launcher: rank 0 says what all ranks know

  std::string report_file;
  bool quiet = false;
  std::string progress = "auto";  ///< "auto", "bar", "lines", "none"
};

/// With nproc the launcher, else one rank. `arguments` are those of the command line, for the ranks
/// to be launched with.
int run(const UpdateCommand& command, const std::vector<std::string>& arguments);

}  // namespace ckpt
