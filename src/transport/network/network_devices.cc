#include "transport/network/network_devices.h"

#include <net/if.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include "base/strings.h"
#include "transport/network/device_filter.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return std::string(trim(line));
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names, natural_less);
  return names;
}

std::string real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? std::string() : real.string();
}

/// "400 Gb/sec (4X NDR)".
std::uint64_t rate_mbit(const std::string& text) {
  double gigabit = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, gigabit).ec != std::errc() || !(gigabit > 0)) return 0;
  return static_cast<std::uint64_t>(gigabit * 1000);
}

/// "0x1003": up, and not the loopback interface. What is no interface has no flags.
bool leads_outward(const fs::path& interface) {
  const std::string text = first_line(interface / "flags");
  if (!text.starts_with("0x")) return false;
  unsigned flags = 0;
  if (std::from_chars(text.data() + 2, text.data() + text.size(), flags, 16).ec != std::errc()) {
    return false;
  }
  return (flags & IFF_UP) != 0 && (flags & IFF_LOOPBACK) == 0;
}

RdmaDevice read_device(const fs::path& folder, const std::string& name) {
  RdmaDevice device{name, {}, 0, real_path(folder / "device"), -1};
  if (const auto node = parse_int(first_line(folder / "device" / "numa_node")); node.is_ok()) {
    device.numa_node = static_cast<int>(*node);
  }
  for (const std::string& port : names_in(folder / "ports")) {
    const auto number = parse_int(port);
    // "4: ACTIVE"
    if (!number.is_ok() || !first_line(folder / "ports" / port / "state").starts_with("4"))
      continue;
    device.active_ports.push_back(static_cast<int>(*number));
    device.mbit += rate_mbit(first_line(folder / "ports" / port / "rate"));
  }
  return device;
}

std::vector<RdmaDevice> nearest(const std::vector<RdmaDevice>& devices, const std::string& gpu) {
  int distance = std::numeric_limits<int>::max();
  for (const RdmaDevice& device : devices) {
    distance = std::min(distance, pci_distance(device.pci_path, gpu));
  }
  std::vector<RdmaDevice> near;
  for (const RdmaDevice& device : devices) {
    if (pci_distance(device.pci_path, gpu) == distance) near.push_back(device);
  }
  return near;
}

bool same_devices(const std::vector<RdmaDevice>& a, const std::vector<RdmaDevice>& b) {
  return std::ranges::equal(a, b, {}, &RdmaDevice::name, &RdmaDevice::name);
}

/// The share of number `who` modulo `count`.
std::vector<RdmaDevice> deal(const std::vector<RdmaDevice>& devices, std::size_t who,
                             std::size_t count) {
  const std::size_t own = who % count;
  const std::size_t first = own * devices.size() / count;
  const std::size_t end = std::max((own + 1) * devices.size() / count, first + 1);
  return {devices.begin() + static_cast<std::ptrdiff_t>(first),
          devices.begin() + static_cast<std::ptrdiff_t>(end)};
}

}  // namespace

std::vector<RdmaDevice> rdma_devices(const std::string& sysfs) {
  const fs::path all = fs::path(sysfs) / "class" / "infiniband";
  std::vector<RdmaDevice> devices;
  for (const std::string& name : names_in(all)) devices.push_back(read_device(all / name, name));
  return devices;
}

std::vector<std::string> interfaces(const std::string& sysfs) {
  return names_in(fs::path(sysfs) / "class" / "net");
}

std::vector<std::string> outward_interfaces(const std::string& sysfs) {
  const fs::path all = fs::path(sysfs) / "class" / "net";
  std::vector<std::string> names = names_in(all);
  std::erase_if(names, [&](const std::string& name) { return !leads_outward(all / name); });
  return names;
}

std::uint64_t interface_mbit(const std::string& sysfs, const std::string& interface) {
  const auto speed = parse_int(first_line(fs::path(sysfs) / "class" / "net" / interface / "speed"));
  return speed.is_ok() && *speed > 0 ? static_cast<std::uint64_t>(*speed) : 0;
}

std::string gpu_pci_path(const std::string& sysfs, const std::string& procfs,
                         const std::string& uuid) {
  const fs::path gpus = fs::path(procfs) / "driver" / "nvidia" / "gpus";
  for (const std::string& address : names_in(gpus)) {
    std::ifstream information(gpus / address / "information");
    for (std::string line; std::getline(information, line);) {
      if (line.starts_with("GPU UUID:") && trim(std::string_view(line).substr(9)) == uuid) {
        return real_path(fs::path(sysfs) / "bus" / "pci" / "devices" / address);
      }
    }
  }
  return {};
}

std::vector<std::string> gpu_pci_paths(const std::string& sysfs, const std::string& procfs) {
  std::vector<std::string> paths;
  for (const std::string& address : names_in(fs::path(procfs) / "driver" / "nvidia" / "gpus")) {
    paths.push_back(real_path(fs::path(sysfs) / "bus" / "pci" / "devices" / address));
  }
  return paths;
}

int pci_distance(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = split(a, '/'), right = split(b, '/');
  const auto fork = std::ranges::mismatch(left, right);
  return static_cast<int>((left.end() - fork.in1) + (right.end() - fork.in2));
}

std::vector<RdmaDevice> devices_of_rank(const std::vector<RdmaDevice>& devices,
                                        const std::string& gpu_path,
                                        const std::vector<std::string>& all_gpus, int local_rank,
                                        int local_ranks) {
  if (devices.empty()) return {};
  const auto rank = static_cast<std::size_t>(std::max(local_rank, 0));
  const auto ranks = static_cast<std::size_t>(std::max(local_ranks, 1));
  if (gpu_path.empty()) return deal(devices, rank, ranks);
  const std::vector<RdmaDevice> near = nearest(devices, gpu_path);
  std::size_t gpus = 0, sharers = 0, own = 0;
  for (const std::string& gpu : all_gpus) {
    ++gpus;
    if (gpu == gpu_path) own = sharers;
    if (same_devices(nearest(devices, gpu), near)) ++sharers;
  }
  sharers = std::max<std::size_t>(sharers, 1);
  if (ranks < gpus) return deal(near, rank, std::min(sharers, ranks));
  // The first ranks of all these GPUs, then the second ones.
  const std::size_t turns = gpus == 0 ? ranks : (ranks + gpus - 1) / gpus;
  const std::size_t turn = gpus == 0 ? rank : rank / gpus;
  return deal(near, turn * sharers + own, turns * sharers);
}

}  // namespace ckpt
