#include "cli/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "base/strings.h"
#include "cli/bench_shares.h"
#include "cli/ceilings.h"
#include "cli/terminal.h"
#include "device/cuda/driver.h"

namespace ckpt {
namespace {

constexpr int kMostThreads = 16;

Result<std::vector<std::shared_ptr<Device>>> devices_of(const BenchCommand& command, int threads) {
  int gpus = 0;
  if (command.device != "host") {
    CKPT_ASSIGN_OR_RETURN(gpus, find_gpus());
  }
  std::vector<std::shared_ptr<Device>> devices;
  if (command.device == "cuda" && gpus == 0) return make_cuda_device(0).status();
  for (int i = 0; i < gpus; ++i) {
    CKPT_ASSIGN_OR_RETURN(auto device, make_cuda_device(i));
    devices.push_back(std::move(device));
  }
  if (devices.empty()) devices.push_back(make_host_device(threads));
  return devices;
}

std::string table(const Device& device, std::size_t count, const std::vector<Ceiling>& all,
                  const std::vector<Share>& shares) {
  std::string text = concat(count, count == 1 ? " device: " : " devices: ", device.name());
  if (device.context_bytes() > 0) {
    text += concat("\n  a CUDA context takes ", format_bytes(device.context_bytes()),
                   " of the device, beside what an update takes");
  }
  for (const Ceiling& ceiling : all) {
    char line[120];
    std::snprintf(line, sizeof(line), "\n  %-26s %-22s %9.1f GB/s", ceiling.what.c_str(),
                  ceiling.with.c_str(), ceiling.gb_per_s);
    text += line;
    if (ceiling.share == 0) continue;
    std::snprintf(line, sizeof(line), "  %5.1f %% of copying, then pinning", ceiling.share * 100);
    text += line;
  }
  if (!shares.empty()) text += "\nours";
  for (const Share& share : shares) {
    char line[160];
    std::snprintf(line, sizeof(line), "\n  %-26s %-22s %9.1f GB/s  %5.1f %% of %s (%.1f)",
                  share.what.c_str(), share.with.c_str(), share.gb_per_s, share.share() * 100,
                  share.ceiling.c_str(), share.ceiling_gb_per_s);
    text += line;
  }
  return text;
}

std::string to_json(const Device& device, std::size_t count, const BenchCommand& command,
                    const std::vector<Ceiling>& all, const std::vector<Share>& shares) {
  using Json = nlohmann::ordered_json;
  Json ceilings = Json::array(), ours = Json::array();
  for (const Ceiling& ceiling : all) {
    ceilings.push_back(
        {{"what", ceiling.what}, {"with", ceiling.with}, {"gb_per_s", ceiling.gb_per_s}});
    if (ceiling.share > 0) ceilings.back()["share_of_ceiling"] = ceiling.share;
  }
  for (const Share& share : shares) {
    ours.push_back({{"what", share.what},
                    {"with", share.with},
                    {"gb_per_s", share.gb_per_s},
                    {"ceiling", share.ceiling},
                    {"ceiling_gb_per_s", share.ceiling_gb_per_s},
                    {"share_of_ceiling", share.share()}});
  }
  return Json{
      {"device", device.name()}, {"devices", count},     {"context_bytes", device.context_bytes()},
      {"bytes", command.bytes},  {"ceilings", ceilings}, {"ours", ours}}
      .dump(2);
}

}  // namespace

int run(const BenchCommand& command) {
  CeilingOptions options{command.bytes, command.seconds, command.threads};
  if (options.threads == 0) options.threads = std::min(kMostThreads, available_processors());
  const auto devices = devices_of(command, options.threads);
  if (!devices) return fail(devices.status());
  const auto ceilings = measure_ceilings(*devices, options);
  if (!ceilings) return fail(ceilings.status());
  const Device& device = *devices->front();
  std::vector<Share> shares;
  if (!command.no_update) {
    auto measured = measure_shares(
        *ceilings, {device.kind(), static_cast<int>(devices->size()), command.update_bytes});
    if (!measured) return fail(measured.status());
    shares = std::move(*measured);
  }
  say(command.json ? to_json(device, devices->size(), command, *ceilings, shares)
                   : table(device, devices->size(), *ceilings, shares));
  return kExitOk;
}

}  // namespace ckpt
