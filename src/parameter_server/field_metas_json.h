// Metas in the JSON of the Python package checkpoint-engine 0.4, which services and trainers pass
// on: {rank: MemoryBufferMetaList}.
//
//   {"0": {"p2p_store_addr": PLACE,
//          "memory_buffer_metas_list": [
//            {"metas": [{"name": TEXT, "dtype": "torch.bfloat16", "shape": [2, 3],
//                        "aligned_size": 256}, ...],
//             "ptr": 0, "size": BYTES}],
//          "rdma_device": "mlx5_0:1"}, ...}
//
// Ranks without tensors are left out. PLACE is a text that nobody else has to understand: it
// carries what that form has no member for, "checkpoint-engine/1/RANKS/HEX/HEX": ranks of the job,
// the checkpoint's name, and the instance data of this rank (metas.h). So a reader of the field
// that parses the text, drops what it does not know and writes it again loses nothing.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Only for metas that Catalog::build accepts.
std::string metas_to_field_json(const Metas& metas);

/// What metas_to_field_json wrote; "ptr", "size", "aligned_size" and unknown members are not looked
/// at. Those of the Python package itself are read by field_pool_metas.h. kInvalidArgument names
/// the rank and the member that is wrong.
Result<Metas> metas_from_field_json(std::string_view text);

}  // namespace ckpt
