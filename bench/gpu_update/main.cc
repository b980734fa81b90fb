// An update of running workers on GPUs, beside the ceiling of the machine in the same run.
//
// Every rank and every worker is a process of its own, as in a real job; a worker takes the weights
// with the native receiver into device memory, or is the program of --worker. Checkpoint: qwen3
// shapes, from tensors in memory. Printed: registration, gather, the first update, the median of
// later ones with and without digests, their share of the H2D ceiling (pinned memory, chunks of 32
// MiB, all ranks at once), and the device memory that an update takes beside contexts and weights.
// Exit code 1 unless every byte has arrived. With --device host it runs without a GPU.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trial/roles.h"
#include "trial/settings.h"
#include "trial/trial.h"

namespace ckpt::bench {
namespace {

using nlohmann::json;

void print(const json& all) {
  const double bytes = all["total_bytes"], ceiling = all["upload_gb_per_s"];
  const auto seconds = [&](const char* member) { return all[member].get<double>(); };
  const auto rate = [&](double time) { return time > 0 ? bytes / time / 1e9 : 0; };
  std::printf("%.2f GB, %d tensors, %d ranks on %d devices (%s), collective %s\n", bytes / 1e9,
              all["tensors"].get<int>(), all["ranks"].get<int>(), all["gpus"].get<int>(),
              all["device"].get<std::string>().c_str(),
              all["collective"].get<std::string>().c_str());
  std::printf("  H2D ceiling         %9.1f GB/s, so %.3f s\n", ceiling, bytes / ceiling / 1e9);
  const auto row = [&](const char* name, const char* member) {
    if (seconds(member) > 0) {
      std::printf("  %-19s %9.3f s %9.2f GB/s\n", name, seconds(member), rate(seconds(member)));
    }
  };
  row("register, first", "register_first_seconds");
  row("register, again", "register_seconds");
  row("files, first", "register_files_first_seconds");
  row("files, again", "register_files_seconds");
  row("device memory, first", "register_device_first_seconds");
  row("device memory, again", "register_device_seconds");
  row("unregister", "unregister_seconds");
  std::printf("  gather              %9.1f ms\n", seconds("gather_seconds") * 1e3);
  const auto update = [&](const char* name, const char* member) {
    std::printf("  %-19s %9.3f s %9.2f GB/s %6.1f %% of the ceiling, %+.0f ms\n", name,
                seconds(member), rate(seconds(member)), rate(seconds(member)) / ceiling * 100,
                (seconds(member) - bytes / ceiling / 1e9) * 1e3);
  };
  update("first update", "first_seconds");
  update("later, verified", "verified_seconds");
  update("later, unverified", "unverified_seconds");
  std::printf("  first bucket after  %9.1f ms\n", seconds("first_bucket_seconds") * 1e3);
  std::printf("  processor seconds   %9.3f of a rank, %.3f of its worker\n",
              seconds("rank_cpu_seconds"), seconds("worker_cpu_seconds"));
  std::printf("  device memory       %9.2f GiB per device during an update, %.2f kept after it\n",
              seconds("extra_device_bytes") / (1 << 30), seconds("kept_device_bytes") / (1 << 30));
  std::printf("  every byte is right\n");
}

void print_nccl(const json& nccl) {
  std::printf("  communicator        %9.3f s to make, %.3f to connect\n",
              nccl["make_seconds"].get<double>(), nccl["connect_seconds"].get<double>());
  for (const char* when :
       {"communicator", "small_call", "warming_call", "large_call", "used", "left"}) {
    std::printf("  %-19s %9.2f GiB of device memory\n", when,
                nccl[std::string(when) + "_bytes"].get<double>() / (1 << 30));
  }
  for (const auto& [size, rate] : nccl["gb_per_s"]["all_roots"].items()) {
    std::printf("  %-19s %9.1f GB/s of all roots\n", size.c_str(), rate.get<double>());
  }
}

void print_death(const json& all) {
  for (const json& told : all["told"]) {
    std::printf("rank %d died in an update; rank %d had the cause after %.3f s: %s\n",
                all["killed_rank"].get<int>(), told["rank"].get<int>(),
                told["seconds"].get<double>(), told["cause"].get<std::string>().c_str());
  }
}

void append(const Settings& settings, const json& all) {
  if (!settings.json.empty()) std::ofstream(settings.json, std::ios::app) << all.dump() << "\n";
}

Status run(const Settings& settings) {
  if (settings.kill_rank < 0) {
    CKPT_ASSIGN_OR_RETURN(const json all, run_trial(settings));
    settings.nccl_alone ? print_nccl(all["nccl"]) : print(all);
    append(settings, all);
    return Status();
  }
  CKPT_ASSIGN_OR_RETURN(json all, run_killing_trial(settings));
  print_death(all);
  print(all["afterwards"]);
  append(settings, all["afterwards"]);
  all.erase("afterwards");
  append(settings, all);
  return Status();
}

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  const auto settings =
      ckpt::bench::parse_settings(std::vector<std::string>(argv + 1, argv + argc));
  if (!settings) {
    std::fprintf(stderr, "gpu_update: %s\n%s", settings.status().message().c_str(),
                 ckpt::bench::kUsage);
    return 2;
  }
  const ckpt::Status status =
      settings->role.empty() ? ckpt::bench::run(*settings) : ckpt::bench::run_role(*settings);
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "gpu_update%s%s: %s\n", settings->role.empty() ? "" : " ",
               settings->role.c_str(), status.to_string().c_str());
  return 1;
}
