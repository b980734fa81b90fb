// Metas of ranks of the Python package checkpoint-engine 0.4 itself, whose memory Mooncake reads:
// what pydantic's TypeAdapter(dict[int, MemoryBufferMetaList]).dump_json(ps.get_metas()) gives of
// its ParameterServer. (Our own metas in the same form: field_metas_json.h.)
//
//   {"0": {"p2p_store_addr": "10.0.0.7:15000", "rdma_device": "mlx5_0",
//          "memory_buffer_metas_list": [{"ptr": 140000000000000, "size": 4096, "metas": [
//            {"name": TEXT, "dtype": "torch.bfloat16", "shape": [2, 3], "aligned_size": 256},
//            ...]}, ...]}, ...}
//
// The tensors of a buffer lie one behind the other, `aligned_size` bytes each. There are no digests
// (digest_algorithm 0), and an owner that takes no leases: nobody knows whether it holds the same
// bytes still.
#pragma once

#include <string_view>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// What these metas are called, which have no name of their own.
inline constexpr std::string_view kFieldCheckpointName = "field";
/// InstanceData::door_region of an owner without a door.
inline constexpr std::uint64_t kNoDoor = UINT64_MAX;

/// Whether that is where they come from.
bool are_of_field_pools(const Metas& metas);

/// Rank i of the result is the i-th rank of the text, by number. Read by a transfer engine that
/// understands "host:port" (Mooncake). kInvalidArgument names the field that is missing or wrong.
Result<Metas> metas_of_field_pools(std::string_view text);

}  // namespace ckpt
