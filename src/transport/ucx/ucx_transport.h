// The transport over UCX: RDMA where there is, else TCP; between processes of one host as well.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/transport.h"

namespace ckpt {

struct UcxOptions {
  /// Who we are, for the messages of others, e.g. "rank 3 on host b".
  std::string label;
  /// Comma-separated devices, e.g. "eth0" or "mlx5_0:1,mlx5_1:1"; empty: all. A UCX_NET_DEVICES of
  /// the environment wins, as all UCX_* variables do.
  std::string net_devices;
  /// The most that a read asks for at once, a divisor of kReadGrain (read_plan.h). 0: what suits
  /// the network, kReadGrain by RDMA and kEagerBytes over TCP.
  std::uint64_t read_grain = 0;
};

/// kUnsupported when this UCX has no usable transport, with its reason.
Result<std::unique_ptr<Transport>> make_ucx_transport(UcxOptions options);

/// ok when memory can be read with these options: reads 4 KiB from one transport to another inside
/// this process, else says why not. Takes some milliseconds.
Status ucx_viable(const UcxOptions& options, Deadline deadline);

}  // namespace ckpt
