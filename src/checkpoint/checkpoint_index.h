// `*.safetensors.index.json`: which file of a sharded checkpoint holds which tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

struct CheckpointIndex {
  struct Entry {
    std::string tensor;
    std::uint32_t file = 0;  ///< index into files

    bool operator==(const Entry&) const = default;
  };
  std::vector<std::string> files;  ///< relative to the index's folder, sorted, each once
  std::vector<Entry> entries;      ///< in the order of the JSON; tensor names are unique

  bool operator==(const CheckpointIndex&) const = default;
};

/// Reads `weight_map`; everything else is ignored. Pure. Refused (kInvalidArgument): what is not
/// JSON, a tensor named twice, a file name that is empty, absolute or leaves the folder through
/// "..".
Result<CheckpointIndex> parse_checkpoint_index(std::span<const std::byte> json);

}  // namespace ckpt
