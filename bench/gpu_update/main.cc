// An update of running workers on GPUs, beside the ceiling of the machine in the same run.
//
// Every rank and every worker is a process of its own, as in a real job; a worker takes the weights
// with the native receiver into device memory, or is the program of --worker. Checkpoint: qwen3
// shapes, from tensors in memory. Printed: registration, gather, the first update, the median of
// later ones with and without digests, their share of the H2D ceiling (pinned memory, chunks of 32
// MiB, all ranks at once), and the device memory that an update takes beside contexts and weights.
// Exit code 1 unless every byte has arrived. With --device host it runs without a GPU.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "base/strings.h"
#include "job.h"
#include "roles.h"
#include "settings.h"

namespace ckpt::bench {

int ordinal_of(const Settings& settings) {
  return settings.isolate ? 0 : settings.rank % settings.gpus;
}

Result<std::shared_ptr<Device>> open_device(const Settings& settings) {
  if (settings.device == "host") return make_host_device(threads_of(settings));
  return make_cuda_device(ordinal_of(settings));
}

int threads_of(const Settings& settings) {
  return std::max(1, available_processors() / settings.ranks);
}

std::uint64_t checkpoint_bytes(const Settings& settings) {
  return static_cast<std::uint64_t>(settings.gib * (1 << 30));
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

namespace {

using nlohmann::json;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double largest(const std::vector<json>& ranks, const json::json_pointer& member) {
  double value = 0;
  for (const json& rank : ranks) value = std::max(value, rank.value(member, 0.0));
  return value;
}

/// What the run says as a whole; the ranks' own numbers are in it too.
json summary(const Settings& settings, const std::vector<json>& ranks) {
  const double bytes = ranks[0]["total_bytes"];
  double ceiling = 0;
  for (const json& rank : ranks) ceiling += rank["upload_gb_per_s"].get<double>();
  std::vector<double> verified, trusted, first_buckets, rank_cpu, worker_cpu, releases;
  double first = 0;
  for (std::size_t i = 0; i < ranks[0]["updates"].size(); ++i) {
    const json::json_pointer at(concat("/updates/", i));
    const double seconds = largest(ranks, at / "seconds");
    if (i == 0) {
      first = seconds;
      continue;
    }
    const bool verify = ranks[0]["updates"][i]["verify"];
    (verify ? verified : trusted).push_back(seconds);
    if (!verify) continue;
    first_buckets.push_back(largest(ranks, at / "first_bucket_seconds"));
    rank_cpu.push_back(largest(ranks, at / "cpu_seconds"));
    worker_cpu.push_back(largest(ranks, at / "worker_cpu_seconds"));
    releases.push_back(largest(ranks, at / "worker_release_seconds"));
  }
  json all = {{"device", ranks[0]["device"]},
              {"ranks", settings.ranks},
              {"gpus", settings.gpus},
              {"isolate", settings.isolate},
              {"hosts", settings.hosts},
              {"worker", settings.worker.empty() ? "native" : settings.worker},
              {"collective", settings.collective},
              {"overlap", settings.overlap},
              {"keep_buffers", settings.keep_buffers},
              {"release_communicators", settings.release_communicators},
              {"ring", settings.ring},
              {"bucket", settings.bucket},
              {"chunk", settings.chunk},
              {"total_bytes", bytes},
              {"tensors", ranks[0]["tensors"]},
              {"upload_gb_per_s", ceiling},
              {"first_seconds", first},
              {"verified_seconds", median(verified)},
              {"unverified_seconds", median(trusted)},
              {"first_bucket_seconds", median(first_buckets)},
              {"rank_cpu_seconds", median(rank_cpu)},
              {"worker_cpu_seconds", median(worker_cpu)},
              {"worker_release_seconds", median(releases)},
              {"extra_device_bytes", largest(ranks, "/extra_device_bytes"_json_pointer)},
              {"kept_device_bytes", largest(ranks, "/kept_device_bytes"_json_pointer)}};
  for (const char* member :
       {"register_first_seconds", "register_seconds", "unregister_seconds", "gather_seconds",
        "register_files_first_seconds", "register_files_seconds", "register_device_first_seconds",
        "register_device_seconds", "download_gb_per_s"}) {
    all[member] = largest(ranks, json::json_pointer(concat("/", member)));
  }
  all["by_rank"] = ranks;
  return all;
}

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

void append(const Settings& settings, const json& all) {
  if (!settings.json.empty()) std::ofstream(settings.json, std::ios::app) << all.dump() << "\n";
}

/// A rank dies in an update: how long until the others have its cause.
Status run_until_death(Settings settings, const Workers& workers) {
  settings.dies = true;
  CKPT_ASSIGN_OR_RETURN(const std::vector<json> ranks, run_ranks(settings, workers));
  const double death = ranks[static_cast<std::size_t>(settings.kill_rank)]["died_at"];
  json all = {{"killed_rank", settings.kill_rank},
              {"ranks", settings.ranks},
              {"gpus", settings.gpus},
              {"collective", settings.collective},
              {"worker", settings.worker}};
  for (int rank = 0; rank < settings.ranks; ++rank) {
    if (rank == settings.kill_rank) continue;
    const json& told = ranks[static_cast<std::size_t>(rank)];
    const double seconds = told["told_at"].get<double>() - death;
    std::printf("rank %d died in an update; rank %d had the cause after %.3f s: %s\n",
                settings.kill_rank, rank, seconds, told["cause"].get<std::string>().c_str());
    all["told"].push_back({{"rank", rank}, {"seconds", seconds}, {"cause", told["cause"]}});
  }
  append(settings, all);
  return Status();
}

Status run(const Settings& settings) {
  CKPT_ASSIGN_OR_RETURN(const Workers workers, Workers::start(settings));
  if (settings.kill_rank >= 0) CKPT_RETURN_IF_ERROR(run_until_death(settings, workers));
  CKPT_ASSIGN_OR_RETURN(const std::vector<json> ranks, run_ranks(settings, workers));
  const json all = summary(settings, ranks);
  print(all);
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
  const ckpt::Status status = settings->role == "rank"     ? ckpt::bench::run_rank(*settings)
                              : settings->role == "worker" ? ckpt::bench::run_worker(*settings)
                                                           : ckpt::bench::run(*settings);
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "gpu_update%s%s: %s\n", settings->role.empty() ? "" : " ",
               settings->role.c_str(), status.to_string().c_str());
  return 1;
}
