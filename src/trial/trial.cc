#include "trial/trial.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "trial/job.h"

namespace ckpt::bench {
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
  double first = 0, streams_made_later = 0;
  for (std::size_t i = 0; i < ranks[0]["updates"].size(); ++i) {
    const json::json_pointer at(concat("/updates/", i));
    const double seconds = largest(ranks, at / "seconds");
    if (i == 0) {
      first = seconds;
      continue;
    }
    streams_made_later += largest(ranks, at / "streams_made");
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
              {"experts", settings.experts},
              {"owners", settings.owners},
              {"first_recipient", settings.first_recipient},
              {"worker", settings.worker.empty() ? "native" : settings.worker},
              {"collective", settings.collective},
              {"overlap", settings.overlap},
              {"keep_buffers", settings.keep_buffers},
              {"failures", settings.failures},
              {"release_communicators", settings.release_communicators},
              {"ring", settings.ring},
              {"bucket", settings.bucket},
              {"chunk", settings.chunk},
              {"in_place", settings.in_place},
              {"loaded", settings.loaded},
              {"total_bytes", bytes},
              {"tensors", ranks[0]["tensors"]},
              {"upload_gb_per_s", ceiling},
              {"first_seconds", first},
              {"streams_made_first", largest(ranks, "/updates/0/streams_made"_json_pointer)},
              {"streams_made_later", streams_made_later},
              {"context_bytes", largest(ranks, "/context_bytes"_json_pointer)},
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
        "register_device_seconds", "unregister_in_place_seconds", "download_gb_per_s",
        "cancelled_seconds"}) {
    all[member] = largest(ranks, json::json_pointer(concat("/", member)));
  }
  all["by_rank"] = ranks;
  for (const char* member : {"peer_gb_per_s", "nccl"}) {
    if (ranks[0].contains(member)) all[member] = ranks[0][member];
  }
  return all;
}

Result<json> run_until_death(Settings settings, const Workers& workers) {
  settings.dies = true;
  CKPT_ASSIGN_OR_RETURN(const std::vector<json> ranks, run_ranks(settings, workers));
  const double death = ranks[static_cast<std::size_t>(settings.kill_rank)]["died_at"];
  json all = {{"killed_rank", settings.kill_rank},
              {"ranks", settings.ranks},
              {"gpus", settings.gpus},
              {"collective", settings.collective},
              {"worker", settings.worker.empty() ? "native" : settings.worker}};
  for (int rank = 0; rank < settings.ranks; ++rank) {
    if (rank == settings.kill_rank) continue;
    const json& told = ranks[static_cast<std::size_t>(rank)];
    all["told"].push_back({{"rank", rank},
                           {"seconds", told["told_at"].get<double>() - death},
                           {"cause", told["cause"]}});
  }
  return all;
}

Result<json> run_updates(const Settings& settings, const Workers& workers) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<json> ranks, run_ranks(settings, workers));
  if (settings.nccl_alone) {
    return json{
        {"device", ranks[0]["device"]}, {"ranks", settings.ranks}, {"nccl", ranks[0]["nccl"]}};
  }
  return summary(settings, ranks);
}

}  // namespace

Result<json> run_trial(const Settings& settings) {
  CKPT_ASSIGN_OR_RETURN(const Workers workers, Workers::start(settings));
  return run_updates(settings, workers);
}

Result<json> run_killing_trial(const Settings& settings) {
  CKPT_ASSIGN_OR_RETURN(const Workers workers, Workers::start(settings));
  CKPT_ASSIGN_OR_RETURN(json all, run_until_death(settings, workers));
  CKPT_ASSIGN_OR_RETURN(all["afterwards"], run_updates(settings, workers));
  return all;
}

}  // namespace ckpt::bench
