// An update of running workers on GPUs, beside the ceiling of the machine in the same run.
//
// Every rank and every worker is a process of its own, as in a real job; a worker takes the weights
// with the native receiver into device memory. Checkpoint: qwen3 shapes, from tensors in memory.
// Printed: registration, gather, the first update, the median of later ones with and without
// digests, their share of the H2D ceiling (pinned memory, chunks of 32 MiB, all ranks at once), and
// the device memory that an update takes beside contexts and weights. Exit code 1 unless every byte
// has arrived. With --device host it runs without a GPU.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "processes.h"
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

/// The processes of a run and the ends on which results arrive.
struct Started {
  std::map<pid_t, std::string> processes;  // and what they are
  std::vector<LineChannel> results;        // by rank
};

Result<Started> start_processes(Settings settings) {
  CKPT_ASSIGN_OR_RETURN(const int port, free_port());
  settings.rendezvous = concat("127.0.0.1:", port);
  settings.job = concat("gpu-update-", random_id());
  Started started;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    settings.rank = rank;
    CKPT_ASSIGN_OR_RETURN(auto pair, make_socket_pair());
    CKPT_ASSIGN_OR_RETURN(auto result, make_socket_pair());
    std::vector<std::string> environment;
    if (settings.isolate) {
      environment.push_back(concat("CUDA_VISIBLE_DEVICES=", rank % settings.gpus));
    }
    settings.role = "worker";
    settings.peer_fd = pair.second.get();
    settings.result_fd = -1;
    CKPT_ASSIGN_OR_RETURN(const pid_t worker,
                          start_self(to_arguments(settings), environment, {settings.peer_fd}));
    started.processes[worker] = concat("worker ", rank);
    settings.role = "rank";
    settings.peer_fd = pair.first.get();
    settings.result_fd = result.second.get();
    CKPT_ASSIGN_OR_RETURN(const pid_t server, start_self(to_arguments(settings), environment,
                                                         {settings.peer_fd, settings.result_fd}));
    started.processes[server] = concat("rank ", rank);
    started.results.emplace_back(std::move(result.first));
  }
  return started;
}

/// Waits for all of them; the first that fails ends the others.
Status wait_for(Started& started) {
  Status status;
  while (!started.processes.empty()) {
    int outcome = 0;
    const pid_t pid = ::waitpid(-1, &outcome, 0);
    const auto process = started.processes.find(pid);
    if (process == started.processes.end()) continue;
    const bool well = WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
    if (!well && status.is_ok()) {
      status =
          peer_error(concat(process->second, " ended with ",
                            WIFSIGNALED(outcome) ? concat("signal ", WTERMSIG(outcome))
                                                 : concat("exit code ", WEXITSTATUS(outcome))));
      for (const auto& [other, name] : started.processes) {
        if (other != pid) ::kill(other, SIGKILL);
      }
    }
    started.processes.erase(process);
  }
  return status;
}

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
  std::vector<double> verified, trusted, first_buckets;
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
    if (verify) first_buckets.push_back(largest(ranks, at / "first_bucket_seconds"));
  }
  json all = {{"device", ranks[0]["device"]},
              {"ranks", settings.ranks},
              {"gpus", settings.gpus},
              {"isolate", settings.isolate},
              {"collective", settings.collective},
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
              {"extra_device_bytes", largest(ranks, "/extra_device_bytes"_json_pointer)},
              {"kept_device_bytes", largest(ranks, "/kept_device_bytes"_json_pointer)}};
  for (const char* member :
       {"register_first_seconds", "register_seconds", "unregister_seconds", "gather_seconds",
        "register_files_first_seconds", "register_files_seconds"}) {
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
  std::printf("  device memory       %9.2f GiB per device during an update, %.2f kept after it\n",
              seconds("extra_device_bytes") / (1 << 30), seconds("kept_device_bytes") / (1 << 30));
  std::printf("  every byte is right\n");
}

Status run(const Settings& settings) {
  CKPT_ASSIGN_OR_RETURN(Started started, start_processes(settings));
  CKPT_RETURN_IF_ERROR(wait_for(started));
  std::vector<json> ranks;
  for (LineChannel& result : started.results) {
    CKPT_ASSIGN_OR_RETURN(const std::string line, result.receive(Deadline::after_seconds(1)));
    ranks.push_back(json::parse(line));
  }
  const json all = summary(settings, ranks);
  print(all);
  if (!settings.json.empty()) std::ofstream(settings.json, std::ios::app) << all.dump() << "\n";
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
