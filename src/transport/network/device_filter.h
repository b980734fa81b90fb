// Which network devices a user wants: PS_P2P_STORE_RDMA_DEVICES, else NCCL_IB_HCA with NCCL's own
// meaning.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// As NCCL: more are ignored.
inline constexpr std::size_t kMostDevices = 32;

/// a < b as people count: mlx5_2 before mlx5_10.
bool natural_less(std::string_view a, std::string_view b);

/// A list with commas: names, each with ":PORT" behind it if wanted. The order given is kept.
/// kNotFound names the list and the devices when one of it is not there.
Result<std::vector<std::string>> listed_devices(std::string_view list,
                                                std::vector<std::string> available);

/// NCCL_IB_HCA, which chooses among active ports ("mlx5_0:1"): "mlx5" prefixes, "=mlx5_0" exact
/// names, "^mlx5" and "^=mlx5_0" all but those; ":PORT" behind a name means that port only. Spaces
/// around names count for nothing, and neither do items without a name, nor those behind the 32nd.
/// A list without items matches everything: it leaves all, in natural order, and "^" none.
/// kNotFound names the filter and the ports when it leaves none.
Result<std::vector<std::string>> nccl_devices(std::string_view filter,
                                              std::vector<std::string> active_ports);

}  // namespace ckpt
