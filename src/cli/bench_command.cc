#include "cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "base/strings.h"
#include "cli/ceilings.h"
#include "cli/terminal.h"

namespace ckpt {
namespace {

constexpr int kMostThreads = 16;

Result<std::vector<std::shared_ptr<Device>>> devices_of(const BenchCommand& command, int threads) {
  const int gpus = command.device == "host" ? 0 : cuda_device_count();
  std::vector<std::shared_ptr<Device>> devices;
  if (command.device == "cuda" && gpus == 0) return make_cuda_device(0).status();
  for (int i = 0; i < gpus; ++i) {
    CKPT_ASSIGN_OR_RETURN(auto device, make_cuda_device(i));
    devices.push_back(std::move(device));
  }
  if (devices.empty()) devices.push_back(make_host_device(threads));
  return devices;
}

std::string table(const std::string& device, std::size_t count, const std::vector<Ceiling>& all) {
  std::string text = concat(count, count == 1 ? " device: " : " devices: ", device);
  for (const Ceiling& ceiling : all) {
    char line[120];
    std::snprintf(line, sizeof(line), "\n  %-26s %-22s %9.1f GB/s", ceiling.what.c_str(),
                  ceiling.with.c_str(), ceiling.gb_per_s);
    text += line;
    if (ceiling.share == 0) continue;
    std::snprintf(line, sizeof(line), "  %5.1f %% of copying, then pinning", ceiling.share * 100);
    text += line;
  }
  return text;
}

}  // namespace

int run(const BenchCommand& command) {
  CeilingOptions options{command.bytes, command.seconds, command.threads};
  if (options.threads == 0) options.threads = std::min(kMostThreads, available_processors());
  const auto devices = devices_of(command, options.threads);
  if (!devices) return fail(devices.status());
  const auto ceilings = measure_ceilings(*devices, options);
  if (!ceilings) return fail(ceilings.status());
  const std::string name = devices->front()->name();
  if (!command.json) {
    say(table(name, devices->size(), *ceilings));
    return kExitOk;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Ceiling& ceiling : *ceilings) {
    list.push_back(
        {{"what", ceiling.what}, {"with", ceiling.with}, {"gb_per_s", ceiling.gb_per_s}});
    if (ceiling.share > 0) list.back()["share_of_ceiling"] = ceiling.share;
  }
  say(nlohmann::ordered_json{
      {"device", name}, {"devices", devices->size()}, {"bytes", command.bytes}, {"ceilings", list}}
          .dump(2));
  return kExitOk;
}

}  // namespace ckpt
