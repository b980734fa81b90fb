#include "cli/inspect_command.h"

#include <map>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "cli/network_report.h"
#include "cli/terminal.h"

namespace ckpt {
namespace {

using nlohmann::ordered_json;

struct DtypeTotal {
  std::uint64_t tensors = 0, bytes = 0;
};

std::map<std::string, DtypeTotal> totals_by_dtype(const CheckpointFiles& files) {
  std::map<std::string, DtypeTotal> totals;
  for (const TensorInfo& tensor : files.tensors) {
    DtypeTotal& total = totals[std::string(dtype_name(tensor.dtype))];
    total.tensors += 1;
    total.bytes += tensor.bytes;
  }
  return totals;
}

std::string shape_text(const TensorInfo& tensor) {
  std::vector<std::string> dimensions;
  for (const auto dimension : tensor.shape) dimensions.push_back(concat(dimension));
  return concat("[", join(dimensions, ", "), "]");
}

void print_text(const std::string& path, const CheckpointFiles& files, bool list_tensors) {
  say(concat(path, ": ", files.tensors.size(), " tensors, ", format_bytes(files.total_bytes()),
             " in ", files.files.size(), files.files.size() == 1 ? " file" : " files"));
  for (const auto& [dtype, total] : totals_by_dtype(files)) {
    say(concat("  ", dtype, ": ", total.tensors, " tensors, ", format_bytes(total.bytes)));
  }
  if (files.left_out > 0) {
    say(concat("  left out: ", files.left_out, " tensors that the index does not name"));
  }
  for (const CheckpointFile& file : files.files) {
    say(concat("  ", file.path, ": ", format_bytes(file.bytes)));
    for (const auto& [key, value] : file.metadata) {
      say(concat("    ", quoted(key), ": ", quoted(value)));
    }
  }
  if (!list_tensors) return;
  for (const TensorInfo& tensor : files.tensors) {
    say(concat("  ", quoted(tensor.name), " ", dtype_name(tensor.dtype), " ", shape_text(tensor),
               " ", tensor.bytes, " bytes"));
  }
}

ordered_json to_json(const std::string& path, const CheckpointFiles& files) {
  ordered_json dtypes = ordered_json::object();
  for (const auto& [dtype, total] : totals_by_dtype(files)) {
    dtypes[dtype] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  }
  ordered_json file_list = ordered_json::array();
  for (const CheckpointFile& file : files.files) {
    file_list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"metadata", file.metadata}});
  }
  ordered_json tensors = ordered_json::array();
  for (std::size_t i = 0; i < files.tensors.size(); ++i) {
    const TensorInfo& tensor = files.tensors[i];
    tensors.push_back({{"name", tensor.name},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"bytes", tensor.bytes},
                       {"file", files.file_of[i]},
                       {"offset", files.offset_of[i]}});
  }
  return {{"path", path},
          {"tensor_count", files.tensors.size()},
          {"total_bytes", files.total_bytes()},
          {"left_out", files.left_out},
          {"dtypes", dtypes},
          {"files", file_list},
          {"tensors", tensors}};
}

}  // namespace

int run(const InspectCommand& command) {
  if (command.network) return inspect_network(command.ranks);
  int code = kExitOk;
  ordered_json all = ordered_json::array();
  for (const std::string& path : command.paths) {
    const auto files = scan_checkpoint(path);
    if (!files) {
      code = refuse(files.status());
    } else if (command.json) {
      all.push_back(to_json(path, *files));
    } else {
      print_text(path, *files, command.list_tensors);
    }
  }
  // Paths are bytes; what is no UTF-8 must not throw.
  if (command.json) say(all.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  return code;
}

}  // namespace ckpt
