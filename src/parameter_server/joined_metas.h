// Metas of several jobs that hold the same checkpoint, as those of one: each stands in for the
// others.
#pragma once

#include <vector>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// The ranks of all parts behind each other, renumbered; Metas::first_ranks says where each part
/// begins. An owner that two parts name is taken once, as the later of its registrations. Whether
/// equal names are equal tensors is for Catalog::build to say. kInvalidArgument when there are no
/// parts, or parts of different checkpoints.
Result<Metas> join_metas(std::vector<Metas> parts);

}  // namespace ckpt
