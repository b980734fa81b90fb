// A rank of a trial: registers, updates its worker, and tells the parent what it saw.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/host.h"
#include "trial/memory_watch.h"
#include "trial/nccl_ceiling.h"
#include "trial/rank_run.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kAnswerPatienceSeconds = 0.05;  // to notice that the update has failed

}  // namespace

RankRun::RankRun(const Settings& settings)
    : settings_(settings),
      worker_(UniqueFd(settings.peer_fd)),
      parent_(UniqueFd(settings.result_fd)),
      weights_(weights_of(settings)) {
  const int owners = settings.owners > 0 ? settings.owners : settings.ranks;
  if (settings.rank >= owners) return;
  share_ = split_by_bytes(weights_.tensors(), owners)[static_cast<std::size_t>(settings.rank)];
}

RankRun::~RankRun() {
  std::error_code gone;
  if (settings_.in_place) std::filesystem::remove(file_path(), gone);
}

Status RankRun::tell_parent(const json& result) { return parent_.send(result.dump()); }

// Of a rank that is updated; others have one that does nothing.
Status RankRun::ask_worker(const std::string& line) {
  if (!is_recipient()) return Status();
  CKPT_RETURN_IF_ERROR(worker_.send(line));
  CKPT_ASSIGN_OR_RETURN(const std::string answer,
                        worker_.receive(Deadline::after_seconds(kPatienceSeconds)));
  return answer == "ok" ? Status() : peer_error(concat("worker: ", line, ": ", answer));
}

// Passes over answers to a rank before us.
Status RankRun::meet_worker() {
  const std::string nonce = random_id();
  CKPT_RETURN_IF_ERROR(worker_.send("ping " + nonce));
  std::string last;
  while (true) {
    auto line = worker_.receive(Deadline::after_seconds(kPatienceSeconds));
    if (!line) return line.status().with_context("worker: " + last);
    if (*line == "pong " + nonce) return Status();
    last = *line;
  }
}

Result<ParameterServerOptions> RankRun::server_options() const {
  ParameterServerOptions options;
  options.rank = settings_.rank;
  options.world_size = settings_.ranks;
  options.local_rank = ordinal_of(settings_);
  options.rendezvous = settings_.rendezvous;
  options.job = settings_.job;
  options.device = settings_.device;
  options.collective = settings_.collective;
  options.overlap = settings_.overlap;
  options.keep_buffers = settings_.keep_buffers;
  options.release_communicators = settings_.release_communicators;
  options.load_threads = settings_.load_threads;
  CKPT_ASSIGN_OR_RETURN(options.ring_bytes, parse_bytes(settings_.ring));
  CKPT_ASSIGN_OR_RETURN(options.bucket_bytes, parse_bytes(settings_.bucket));
  CKPT_ASSIGN_OR_RETURN(options.chunk_bytes, parse_bytes(settings_.chunk));
  return options;
}

Status RankRun::start() {
  // The worker's context and parameters are there before any memory is counted.
  CKPT_RETURN_IF_ERROR(meet_worker());
  CKPT_ASSIGN_OR_RETURN(device_, open_device(settings_));
  CKPT_ASSIGN_OR_RETURN(ParameterServerOptions options, server_options());
  CKPT_ASSIGN_OR_RETURN(server_, ParameterServer::create(std::move(options)));
  return settings_.nccl_alone ? Status() : measure_ceilings();
}

// From now on what is updated is the second job.
Status RankRun::join_readers() {
  CKPT_ASSIGN_OR_RETURN(const std::string mine, server_->export_metas());
  CKPT_ASSIGN_OR_RETURN(const auto metas, server_->all_gather(mine, kPatienceSeconds));
  CKPT_ASSIGN_OR_RETURN(ParameterServerOptions options, server_options());
  options.rendezvous = settings_.reader_rendezvous;
  options.job += "-reader";
  owner_ = std::move(server_);
  CKPT_ASSIGN_OR_RETURN(server_, ParameterServer::create(std::move(options)));
  CKPT_RETURN_IF_ERROR(server_->load_metas(metas.front()));
  return barrier();
}

UpdateOptions RankRun::update_options(bool verify) const {
  UpdateOptions options;
  options.instance_size = 1;
  options.verify = verify;
  options.engine_answer_means_done = true;
  if (settings_.first_recipient > 0) {
    for (int rank = settings_.first_recipient; rank < settings_.ranks; ++rank) {
      options.recipients.push_back(rank);
    }
    options.all_ranks_call = false;
  }
  return options;
}

Result<UpdateReport> RankRun::update(const UpdateOptions& options,
                                     std::vector<std::string>& numbers) {
  const auto call = [&](const std::vector<WorkerAddress>& all,
                        EngineCallContext& context) -> Status {
    const std::string& address = all[static_cast<std::size_t>(context.rank())].address;
    CKPT_RETURN_IF_ERROR(
        worker_.send(concat("update ", address, options.verify ? " verify" : " trust")));
    // The answer of a worker whose update has failed is nobody's any more.
    while (!context.cancelled()) {
      auto answer = worker_.receive(
          Deadline::after_seconds(std::min(kAnswerPatienceSeconds, context.remaining_seconds())));
      if (answer.status().code() == StatusCode::kDeadlineExceeded) continue;
      CKPT_RETURN_IF_ERROR(answer.status());
      numbers = split(*answer, ' ');
      return numbers[0] == "ok" ? Status() : peer_error("worker: " + *answer);
    }
    return aborted("the update has failed");
  };
  return server_->update(kName, call, options);
}

Status RankRun::measure_update(bool verify, json& updates) {
  std::vector<std::string> worker_numbers;
  CKPT_RETURN_IF_ERROR(barrier());
  if (!is_recipient()) {
    updates.push_back({{"seconds", 0}, {"verify", verify}});
    return Status();
  }
  const double cpu_begin = cpu_seconds();
  const auto begin = Clock::now();
  CKPT_ASSIGN_OR_RETURN(const UpdateReport report, update(update_options(verify), worker_numbers));
  json one = {{"seconds", seconds_since(begin)},
              {"verify", verify},
              {"wire", report.wire},
              {"cpu_seconds", cpu_seconds() - cpu_begin},
              {"worker_seconds", std::stod(worker_numbers.at(1))},
              {"worker_load_seconds", std::stod(worker_numbers.at(2))},
              {"worker_cpu_seconds", std::stod(worker_numbers.at(3))},
              {"first_bucket_seconds", report.first_bucket_seconds},
              {"commit_seconds", report.commit_seconds},
              {"buckets", report.buckets},
              {"verified_tensors", report.verified_tensors},
              {"ring_bytes", report.ring_bytes},
              {"staging_bytes", report.staging_bytes},
              {"communicator_bytes", report.communicator_bytes},
              {"allocated_bytes", report.allocated_bytes},
              {"kept_bytes", report.kept_bytes},
              {"streams_made", report.streams_made}};
  if (worker_numbers.size() > 4) one["worker_release_seconds"] = std::stod(worker_numbers[4]);
  for (const StageReport& stage : report.stages) one["stages"][stage.name] = stage.seconds;
  updates.push_back(std::move(one));
  return Status();
}

void RankRun::die() {
  static_cast<void>(parent_.send(json{{"died_at", seconds_since({})}}.dump()));
  ::raise(SIGKILL);
  std::abort();
}

Result<json> RankRun::run_until_death() {
  CKPT_RETURN_IF_ERROR(start());
  CKPT_RETURN_IF_ERROR(server_->register_checkpoint(kName, from_memory()));
  CKPT_RETURN_IF_ERROR(server_->gather_metas(kName));
  std::vector<std::string> numbers;
  CKPT_RETURN_IF_ERROR(update(update_options(true), numbers).status());
  CKPT_RETURN_IF_ERROR(ask_worker("compare"));
  CKPT_RETURN_IF_ERROR(barrier());
  UpdateOptions options = update_options(true);
  options.progress = [&](std::uint64_t loaded, std::uint64_t total) {
    if (settings_.rank == settings_.kill_rank && loaded > total / 3) die();
  };
  const auto failed = update(options, numbers);
  if (failed) return internal_error("the update has succeeded although one of its ranks died");
  return json{{"told_at", seconds_since({})}, {"cause", failed.status().to_string()}};
}

// Rank 0 cancels when it has a third; how long it takes then until this rank's update returns.
Status RankRun::measure_failures() {
  double slowest = 0;
  std::vector<std::string> numbers;
  for (int i = 0; i < settings_.failures; ++i) {
    CKPT_RETURN_IF_ERROR(barrier());
    std::optional<Clock::time_point> cancelled;
    UpdateOptions options = update_options(true);
    options.progress = [&](std::uint64_t loaded, std::uint64_t total) {
      if (settings_.rank > 0 || cancelled || loaded <= total / 3) return;
      cancelled = Clock::now();
      server_->cancel(aborted("cancelled on purpose"));
    };
    if (update(options, numbers)) return internal_error("a cancelled update has succeeded");
    const Clock::time_point returned = Clock::now();
    // The ranks are on one machine, whose clock is everybody's.
    const std::string told = cancelled ? concat(cancelled->time_since_epoch().count()) : "";
    CKPT_ASSIGN_OR_RETURN(const auto all, server_->all_gather(told, kPatienceSeconds));
    if (all.front().empty()) return internal_error("an update failed before it was cancelled");
    const Clock::time_point begin(Clock::duration(std::stoll(all.front())));
    slowest = std::max(slowest, std::chrono::duration<double>(returned - begin).count());
    CKPT_RETURN_IF_ERROR(meet_worker());
  }
  measured_["cancelled_seconds"] = slowest;
  json works;
  CKPT_RETURN_IF_ERROR(ask_worker("poison"));
  CKPT_RETURN_IF_ERROR(measure_update(true, works));
  return ask_worker("compare");
}

Status RankRun::measure_updates(json& result) {
  json& updates = result["updates"] = json::array();
  CKPT_RETURN_IF_ERROR(ask_worker("poison"));
  CKPT_RETURN_IF_ERROR(barrier());
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory before, device_->memory());
  CKPT_RETURN_IF_ERROR(measure_update(true, updates));
  CKPT_RETURN_IF_ERROR(ask_worker("compare"));
  for (const bool verify : {true, false}) {
    for (int i = 0; i < settings_.updates; ++i) {
      if (i + 1 == settings_.updates) CKPT_RETURN_IF_ERROR(ask_worker("poison"));
      CKPT_RETURN_IF_ERROR(measure_update(verify, updates));
    }
    CKPT_RETURN_IF_ERROR(ask_worker("compare"));
  }
  if (settings_.failures > 0) CKPT_RETURN_IF_ERROR(measure_failures());
  // Asking for the free memory could slow an update down: one of its own.
  CKPT_RETURN_IF_ERROR(barrier());
  MemoryWatch watch(*device_);
  json watched;
  CKPT_RETURN_IF_ERROR(measure_update(true, watched));
  const std::uint64_t least = watch.least();
  CKPT_RETURN_IF_ERROR(barrier());
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory after, device_->memory());
  const auto less = [&](std::uint64_t now) {
    return static_cast<std::int64_t>(before.free_bytes) - static_cast<std::int64_t>(now);
  };
  result["extra_device_bytes"] = less(least);
  result["kept_device_bytes"] = less(after.free_bytes);
  return Status();
}

Result<json> RankRun::run() {
  CKPT_RETURN_IF_ERROR(start());
  json result = {{"rank", settings_.rank},
                 {"gpu", settings_.rank % settings_.gpus},
                 {"device", device_->name()},
                 {"context_bytes", device_->context_bytes()},
                 {"tensors", weights_.tensors().size()},
                 {"total_bytes", weights_.total_bytes()}};
  if (settings_.nccl_alone || settings_.nccl_ceilings) {
    CKPT_ASSIGN_OR_RETURN(result["nccl"], measure_nccl(*server_, *device_));
  }
  if (settings_.nccl_alone) return result;
  CKPT_RETURN_IF_ERROR(measure_registration());
  result["share_bytes"] = share_bytes_;
  if (settings_.loaded) CKPT_RETURN_IF_ERROR(join_readers());
  CKPT_RETURN_IF_ERROR(measure_updates(result));
  if (settings_.in_place) CKPT_RETURN_IF_ERROR(end_in_place());
  for (const auto& [name, value] : measured_) result[name] = value;
  return result;
}

Status run_rank(const Settings& settings) {
  RankRun run(settings);
  CKPT_ASSIGN_OR_RETURN(const json result, settings.dies ? run.run_until_death() : run.run());
  return run.tell_parent(result);
}

}  // namespace ckpt::bench
