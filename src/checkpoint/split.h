// Splitting a checkpoint over ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint_engine/tensor.h"

namespace ckpt {

/// Deals groups (order.h), in plan order, to the rank with the fewest bytes so far, so that every
/// run of layers uses all ranks. Groups above a twentieth of a share go first, the largest first,
/// and the others fill the room that they leave. Result: for each of `world_size` (at least 1)
/// ranks, indices into `tensors` in plan order; every tensor exactly once; the same on every rank.
/// The largest share is at most 1.1 x the mean where tensor sizes allow; a group larger than that,
/// or in the way of it, is cut into its tensors.
std::vector<std::vector<std::uint32_t>> split_by_bytes(const std::vector<TensorInfo>& tensors,
                                                       int world_size);

/// The field's simple way: whole files, `file_of[i]` being the number of tensor i's file, dealt in
/// order of their numbers to the rank with the fewest bytes so far. Result as above.
std::vector<std::vector<std::uint32_t>> split_by_files(const std::vector<TensorInfo>& tensors,
                                                       const std::vector<std::uint32_t>& file_of,
                                                       int world_size);

}  // namespace ckpt
