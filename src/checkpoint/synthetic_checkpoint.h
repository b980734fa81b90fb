// Checkpoints with made-up contents that every host can compute again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// Bytes [offset, offset + to.size()) of `tensor`: a function of `seed`, the tensor's name, its
/// dtype and the position alone. Values of floating types are finite, those of BOOL 0 or 1.
void fill_synthetic(std::span<std::byte> to, std::uint64_t seed, const TensorInfo& tensor,
                    std::uint64_t offset);

struct SyntheticOptions {
  std::uint64_t seed = 0;
  /// A file holds at most this many bytes of data, or one larger tensor.
  std::uint64_t shard_bytes = 4'500'000'000;
  /// 0: one per processor.
  int threads = 0;
};

/// Writes `tensors` in their order into model-00001-of-000NN.safetensors and so on, then
/// model.safetensors.index.json, into `folder`, which is made when missing. kAlreadyExists when it
/// holds a checkpoint already. After an error the files that were finished stay, without an index.
Status write_synthetic_checkpoint(const std::string& folder, const std::vector<TensorInfo>& tensors,
                                  const SyntheticOptions& options = {});

}  // namespace ckpt
