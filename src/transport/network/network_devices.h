// What this host has: RDMA devices and network interfaces, as sysfs shows them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt {

struct RdmaDevice {
  std::string name;  ///< "mlx5_0"
  std::vector<int> active_ports;
  std::uint64_t mbit = 0;  ///< of its active ports together; 0: unknown
  std::string pci_path;    ///< where it hangs in the tree of PCIe devices; may be empty
  int numa_node = -1;
};

/// In natural order; empty where there is no RDMA at all. `sysfs` is "/sys" but for tests.
std::vector<RdmaDevice> rdma_devices(const std::string& sysfs);
/// All of them, in natural order.
std::vector<std::string> interfaces(const std::string& sysfs);
/// Those that are up and lead to other hosts, in natural order.
std::vector<std::string> outward_interfaces(const std::string& sysfs);
/// 0: unknown, as for virtual interfaces.
std::uint64_t interface_mbit(const std::string& sysfs, const std::string& interface);
/// Of a GPU by its uuid ("GPU-..."); empty where the driver does not say. `procfs` is "/proc".
std::string gpu_pci_path(const std::string& sysfs, const std::string& procfs,
                         const std::string& uuid);

/// Of all of this host, in natural order of their addresses.
std::vector<std::string> gpu_pci_paths(const std::string& sysfs, const std::string& procfs);

/// Bridges and devices between two places in the tree: 0 for the same device.
int pci_distance(const std::string& a, const std::string& b);

/// The devices of rank number `local_rank` of `local_ranks` on this host. Of those that are equally
/// near to its GPU (`gpu_path`) it shares with the ranks of the GPUs (`all_gpus`) to which the same
/// ones are nearest; without a GPU's place, of all with all. They are dealt evenly, whole ones
/// while there are enough, else several ranks have one: two ranks have the same devices, or none in
/// common. Ranks are taken to use the GPUs in turn; fewer ranks than GPUs, to be near each other
/// (each then has fewer devices than it might). Empty only when `devices` is.
std::vector<RdmaDevice> devices_of_rank(const std::vector<RdmaDevice>& devices,
                                        const std::string& gpu_path,
                                        const std::vector<std::string>& all_gpus, int local_rank,
                                        int local_ranks);

}  // namespace ckpt
