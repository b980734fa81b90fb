#include "cli/network_report.h"

#include <string>
#include <vector>

#include "base/env.h"
#include "base/strings.h"
#include "cli/terminal.h"
#include "device/device.h"
#include "transport/network/network_choice.h"
#include "transport/network/network_devices.h"
#include "transport/ucx/ucx_inspect.h"

namespace ckpt {
namespace {

constexpr const char* kSysfs = "/sys";
constexpr double kViabilitySeconds = 10;

std::string speed(std::uint64_t mbit) {
  return mbit > 0 ? concat(mbit, " Mbit/s") : std::string("speed unknown");
}

void print_devices() {
  say("interfaces:");
  for (const std::string& name : interfaces(kSysfs)) {
    say(concat("  ", name, ": ", speed(interface_mbit(kSysfs, name))));
  }
  const std::vector<RdmaDevice> devices = rdma_devices(kSysfs);
  say(devices.empty() ? "RDMA devices: none" : "RDMA devices:");
  for (const RdmaDevice& device : devices) {
    std::vector<std::string> ports;
    for (const int port : device.active_ports) ports.push_back(concat(port));
    say(concat("  ", device.name, ": ",
               ports.empty() ? "no active port" : concat("active ports ", join(ports, ", ")), ", ",
               speed(device.mbit), ", NUMA node ", device.numa_node, ", ", device.pci_path));
  }
}

/// Where the job's hub is, as far as the environment says: what else routes there is ours.
std::string master_host() { return env_string("MASTER_ADDR").value_or("127.0.0.1"); }

Status print_ranks(int ranks) {
  const int gpus = cuda_device_count();
  if (ranks == 0) ranks = gpus > 0 ? gpus : 8;
  say(concat("ranks (", ranks, gpus > 0 ? ", one for each GPU in turn" : ", no GPUs", "):"));
  for (int rank = 0; rank < ranks; ++rank) {
    NetworkRequest request;
    request.master_host = master_host();
    request.local_rank = rank;
    request.local_ranks = ranks;
    if (gpus > 0) {
      const auto gpu = make_cuda_device(rank % gpus);
      if (gpu) request.device_uuid = (*gpu)->uuid();
    }
    CKPT_ASSIGN_OR_RETURN(const NetworkChoice choice, choose_network(request));
    say(concat("  local rank ", rank, ": ", choice.text));
    CKPT_RETURN_IF_ERROR(choice.rdma_filter);
  }
  return Status::ok();
}

void print_ucx() {
  const auto abilities = inspect_ucx({});
  if (!abilities) {
    say(concat("UCX: ", abilities.status().message()));
    return;
  }
  say(concat("UCX ", abilities->version, ":"));
  for (const std::string& resource : abilities->resources) say(concat("  ", resource));
  say(concat("  memory it knows: ", join(abilities->memory, ", ")));
  say(abilities->reads_into_gpus.is_ok()
          ? std::string("  what ranks on GPUs read goes straight into GPU memory")
          : concat("  what ranks on GPUs read goes through pinned host memory: ",
                   abilities->reads_into_gpus.message()));
  const Status viable = ucx_viable({}, Deadline::after_seconds(kViabilitySeconds));
  say(viable.is_ok() ? "  reading memory of another transport works"
                     : concat("  ", viable.message()));
}

}  // namespace

int inspect_network(int ranks) {
  print_devices();
  const Status chosen = print_ranks(ranks);
  print_ucx();
  return chosen.is_ok() ? kExitOk : refuse(chosen);
}

}  // namespace ckpt
