// Splitting a checkpoint over ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// Deals groups (order.h), in plan order, to the rank with the fewest bytes so far, so that every
/// run of layers uses all ranks. Result: for each rank, indices into `tensors` in plan order; every
/// tensor exactly once; the same on every rank. The largest share is at most 1.1 x the mean where
/// group sizes allow; a group larger than that is cut into its tensors.
std::vector<std::vector<std::uint32_t>> split_by_bytes(const std::vector<TensorInfo>& tensors,
                                                       int world_size);

/// The field's simple way: whole files, `file_of[i]` being the file of tensor i, dealt to the rank
/// with the fewest bytes.
std::vector<std::vector<std::uint32_t>> split_by_files(const std::vector<TensorInfo>& tensors,
                                                       const std::vector<std::uint32_t>& file_of,
                                                       int world_size);

}  // namespace ckpt
