// Which address and devices a rank uses for reading other hosts' memory and being read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "transport/network/own_address.h"

namespace ckpt {

struct NetworkRequest {
  std::string advertise;  ///< as own_address
  std::string master_host;
  std::string device_uuid;  ///< of the rank's GPU; empty or unknown: devices are dealt evenly
  int local_rank = 0, local_ranks = 1;
  std::string sysfs = "/sys", procfs = "/proc";
};

struct NetworkChoice {
  OwnAddress address;
  std::vector<std::string> devices;  ///< "mlx5_0:1" for RDMA, else the interface
  bool rdma = false;
  /// Not ok: the user's filter leaves no RDMA device. All else is then as on a host without any:
  /// what must not depend on RDMA goes on.
  Status rdma_filter;
  /// That the transport is to be limited to; empty: it may use whatever there is.
  std::string limit;
  std::uint64_t mbit = 0;  ///< of the devices together; 0: unknown. PS_NETWORK_MBIT wins.
  std::string text;        ///< for the log
};

/// RDMA devices by PS_P2P_STORE_RDMA_DEVICES, else NCCL_IB_HCA among the active ports (it counts
/// for nothing on a host without any), else all with an active port; of these the rank's own ones.
/// An interface limits the transport only where the user has named it; beside RDMA devices, all
/// that lead to other hosts stay open. Errors are those of own_address; they say what the user
/// gave.
Result<NetworkChoice> choose_network(const NetworkRequest& request);

}  // namespace ckpt
