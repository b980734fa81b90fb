#include "cli/bench_shares.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "collective/nccl/nccl_api.h"
#include "trial/trial.h"

namespace ckpt {
namespace {

using nlohmann::json;

constexpr double kGiB = 1ull << 30;
constexpr std::uint64_t kCudaBytes = 4ull << 30;
constexpr std::uint64_t kHostBytes = 256ull << 20;
// Of the tensors' dimensions, so that the largest is small beside the checkpoint.
constexpr int kHostShrink = 4;
constexpr int kUpdates = 3;
constexpr const char* kDefaultChunk = "32MiB";
constexpr const char* kOtherChunks[] = {"4MiB", "16MiB", "64MiB"};

bench::Settings trial_settings(const ShareOptions& options) {
  const bool host = options.device == DeviceKind::kHost;
  bench::Settings settings;
  settings.program = "/proc/self/exe trial-process";
  settings.device = host ? "host" : "cuda";
  settings.ranks = settings.gpus = options.devices;
  settings.gib = static_cast<double>(options.bytes > 0 ? options.bytes
                                     : host            ? kHostBytes
                                                       : kCudaBytes) /
                 kGiB;
  settings.updates = kUpdates;
  if (host) {
    settings.shrink = kHostShrink;
    settings.chunk = "0";
  } else {
    settings.from_device = true;
  }
  return settings;
}

double rate(const json& figures, const char* seconds) {
  const double time = figures[seconds];
  return time > 0 ? figures["total_bytes"].get<double>() / time / 1e9 : 0;
}

/// Of the slowest worker, in updates without digests: copies alone.
double loading_rate(const json& figures) {
  double slowest = 0;
  for (const json& rank : figures["by_rank"]) {
    std::vector<double> seconds;
    for (const json& update : rank["updates"]) {
      if (!update["verify"]) seconds.push_back(update["worker_load_seconds"]);
    }
    std::ranges::sort(seconds);
    slowest = std::max(slowest, seconds[seconds.size() / 2]);
  }
  return slowest > 0 ? figures["total_bytes"].get<double>() / slowest / 1e9 : 0;
}

double ceiling_of(const std::vector<Ceiling>& ceilings, std::string_view what,
                  std::string_view with = {}) {
  double best = 0;
  for (const Ceiling& ceiling : ceilings) {
    if (ceiling.what == what && (with.empty() || ceiling.with == with)) {
      best = std::max(best, ceiling.gb_per_s);
    }
  }
  return best;
}

void add_shares(const json& figures, const ShareOptions& options,
                const std::vector<Ceiling>& ceilings, std::vector<Share>& shares) {
  const bool host = options.device == DeviceKind::kHost;
  const double upload = figures["upload_gb_per_s"];
  const std::string bound = host                  ? "copying by the rank's threads"
                            : options.devices > 1 ? "host to devices, all at once"
                                                  : "host to device";
  const std::string size = concat(format_bytes(figures["total_bytes"].get<std::uint64_t>()));
  const double verified = rate(figures, "verified_seconds");
  shares.push_back({"update, verified", size, verified, bound, upload});
  shares.push_back(
      {"update, not verified", size, rate(figures, "unverified_seconds"), bound, upload});
  if (figures.contains("peer_gb_per_s")) {
    const double of_others = (options.devices - 1.0) / options.devices;
    shares.push_back({"from other devices", "into each", verified * of_others,
                      "between devices, all at once", figures["peer_gb_per_s"]});
  }
  if (figures.contains("nccl")) {
    for (const char* roots : {"one_root", "all_roots"}) {
      for (const auto& [bytes, ceiling] : figures["nccl"]["gb_per_s"][roots].items()) {
        shares.push_back(
            {"update, verified", size, verified,
             concat("NCCL broadcast, ",
                    roots == std::string_view("one_root") ? "one root" : "all roots", ", ", bytes),
             ceiling});
      }
    }
  }
  shares.push_back({"loading by the worker", "one", loading_rate(figures),
                    host ? "copy into touched memory" : "on the device",
                    ceiling_of(ceilings, host ? "copy into touched memory" : "on the device")});
  if (!host) {
    shares.push_back({"registration from the GPU", "pool pinned before",
                      rate(figures, "register_device_seconds"), "device to host",
                      figures["download_gb_per_s"].get<double>() * options.devices});
  }
}

}  // namespace

Result<std::vector<Share>> measure_shares(const std::vector<Ceiling>& ceilings,
                                          const ShareOptions& options) {
  bench::Settings settings = trial_settings(options);
  std::vector<Share> shares;
  settings.nccl_ceilings =
      options.device == DeviceKind::kCuda && options.devices > 1 && load_nccl().is_ok();
  CKPT_ASSIGN_OR_RETURN(const json figures, bench::run_trial(settings));
  settings.nccl_ceilings = false;
  add_shares(figures, options, ceilings, shares);
  if (options.device == DeviceKind::kHost) return shares;
  settings.from_device = false;
  const std::string what = "host to device";
  const auto add_chunk = [&](const char* chunk, const json& run) {
    const std::string with = concat("chunks of ", format_bytes(*parse_bytes(chunk)));
    const double alone = ceiling_of(ceilings, what, with);
    shares.push_back({"update, verified", with, rate(run, "verified_seconds"),
                      options.devices > 1 ? "host to devices, all at once" : what,
                      options.devices > 1 ? run["upload_gb_per_s"].get<double>() : alone});
  };
  add_chunk(kDefaultChunk, figures);
  for (const char* chunk : kOtherChunks) {
    settings.chunk = chunk;
    CKPT_ASSIGN_OR_RETURN(const json run, bench::run_trial(settings));
    add_chunk(chunk, run);
  }
  return shares;
}

}  // namespace ckpt
