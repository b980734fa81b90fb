#include "transport/network/network_choice.h"

#include <algorithm>

#include "base/env.h"
#include "base/strings.h"
#include "transport/network/device_filter.h"
#include "transport/network/network_devices.h"

namespace ckpt {
namespace {

/// "mlx5_0:1" is the device "mlx5_0".
std::string device_of(const std::string& name) { return name.substr(0, name.find(':')); }

std::vector<std::string> names_of(const std::vector<RdmaDevice>& devices) {
  std::vector<std::string> names;
  for (const RdmaDevice& device : devices) names.push_back(device.name);
  return names;
}

/// "mlx5_0:1", in the order of the devices.
std::vector<std::string> active_ports(const std::vector<RdmaDevice>& devices) {
  std::vector<std::string> ports;
  for (const RdmaDevice& device : devices) {
    for (const int port : device.active_ports) ports.push_back(concat(device.name, ':', port));
  }
  return ports;
}

Result<std::vector<std::string>> wanted_devices(const std::vector<RdmaDevice>& present) {
  if (const auto list = env_string("PS_P2P_STORE_RDMA_DEVICES")) {
    return listed_devices(*list, names_of(present));
  }
  const std::vector<std::string> active = active_ports(present);
  const auto filter = env_string("NCCL_IB_HCA");
  return filter && !active.empty() ? nccl_devices(*filter, active) : active;
}

/// Every active port of a device where none was named; port 1 where none is active.
std::vector<std::string> with_ports(const std::string& wanted, const RdmaDevice& device) {
  if (wanted != device.name) return {wanted};
  std::vector<std::string> ports = active_ports({device});
  if (ports.empty()) ports.push_back(concat(device.name, ":1"));
  return ports;
}

/// What may be used beside RDMA devices: nobody reaches them over TCP else.
std::vector<std::string> interfaces_beside(const OwnAddress& own, const std::string& sysfs) {
  if (!own.named) {
    std::vector<std::string> outward = outward_interfaces(sysfs);
    if (!outward.empty()) return outward;
  }
  if (own.interface.empty()) return {};
  return {own.interface};
}

}  // namespace

Result<NetworkChoice> choose_network(const NetworkRequest& request) {
  NetworkChoice choice;
  CKPT_ASSIGN_OR_RETURN(choice.address, own_address(request.advertise, request.master_host));
  const std::vector<RdmaDevice> present = rdma_devices(request.sysfs);
  const auto filtered = wanted_devices(present);
  choice.rdma_filter = filtered.status();
  const std::vector<std::string> wanted = filtered ? *filtered : std::vector<std::string>();
  std::vector<RdmaDevice> candidates;  // in the order wanted
  for (const std::string& name : wanted) {
    const auto at = std::ranges::find(present, device_of(name), &RdmaDevice::name);
    if (std::ranges::find(candidates, at->name, &RdmaDevice::name) == candidates.end()) {
      candidates.push_back(*at);
    }
  }
  const std::string gpu = gpu_pci_path(request.sysfs, request.procfs, request.device_uuid);
  for (const RdmaDevice& device :
       devices_of_rank(candidates, gpu, gpu_pci_paths(request.sysfs, request.procfs),
                       request.local_rank, request.local_ranks)) {
    choice.rdma = true;
    choice.mbit += device.mbit;
    for (const std::string& name : wanted) {
      if (device_of(name) != device.name) continue;
      for (std::string& port : with_ports(name, device)) choice.devices.push_back(std::move(port));
    }
  }
  const std::string& interface = choice.address.interface;
  if (choice.rdma) {
    std::vector<std::string> limit = choice.devices;
    for (std::string& beside : interfaces_beside(choice.address, request.sysfs)) {
      limit.push_back(std::move(beside));
    }
    choice.limit = join(limit, ",");
  } else if (!interface.empty()) {
    choice.devices = {interface};
    choice.mbit = interface_mbit(request.sysfs, interface);
    if (choice.address.named) choice.limit = interface;
  }
  if (!choice.rdma_filter.is_ok() && !present.empty()) {
    choice.limit = join(interfaces_beside(choice.address, request.sysfs), ",");
  }
  CKPT_ASSIGN_OR_RETURN(const auto given, env_int({"PS_NETWORK_MBIT"}));
  if (given && *given > 0) choice.mbit = static_cast<std::uint64_t>(*given);
  choice.text = concat(choice.address.address.empty() ? "no address" : choice.address.address, " (",
                       choice.address.reason, "), ", choice.rdma ? "RDMA over " : "devices ",
                       choice.devices.empty() ? "unknown" : join(choice.devices, ", "),
                       choice.mbit > 0 ? concat(", ", choice.mbit, " Mbit/s") : "");
  if (!choice.rdma_filter.is_ok()) choice.text += concat("; ", choice.rdma_filter.message());
  return choice;
}

}  // namespace ckpt
