// Where the tensors of a checkpoint on disk are: files, index, offsets.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

struct CheckpointFile {
  std::string path;  ///< as given, or the folder's path, "/" and the name in it
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> metadata;

  bool operator==(const CheckpointFile&) const = default;
};

/// The bytes of tensor i are pread(files[file_of[i]].path, offset_of[i], tensors[i].bytes). Equal
/// on every host that holds equal files.
struct CheckpointFiles {
  std::vector<CheckpointFile> files;
  std::vector<TensorInfo> tensors;       ///< by file, then by offset; names are unique
  std::vector<std::uint32_t> file_of;    ///< for each tensor, index into files
  std::vector<std::uint64_t> offset_of;  ///< for each tensor, from the file's begin; any alignment
  /// Tensors that lie in the files but that the index does not give to the file they lie in.
  std::uint64_t left_out = 0;

  std::uint64_t total_bytes() const;
  bool operator==(const CheckpointFiles&) const = default;
};

/// `path` is one .safetensors file or a folder. In a folder, the one `*.safetensors.index.json`
/// decides which file a tensor comes from; without one, all its `*.safetensors` in the order of
/// their names do. Names that begin with a dot are skipped, subfolders are not searched. Headers
/// are read by several threads. Errors name file, tensor and reason: kNotFound, kInvalidArgument (a
/// malformed file or index; one name in two files), kUnsupported, kIo.
Result<CheckpointFiles> scan_checkpoint(const std::string& path);

/// Exactly these files, in this order. One tensor name in two of them is refused.
Result<CheckpointFiles> open_files(const std::vector<std::string>& paths);

}  // namespace ckpt
