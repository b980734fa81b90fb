// The parameter server of one rank, and what it measures.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/host.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/split.h"
#include "checkpoint_engine/parameter_server.h"
#include "trial/ceiling.h"
#include "trial/memory_watch.h"
#include "trial/nccl_ceiling.h"
#include "trial/processes.h"
#include "trial/roles.h"
#include "trial/weights.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kPatienceSeconds = 600;
constexpr double kAnswerPatienceSeconds = 0.05;  // to notice that the update has failed
constexpr std::uint64_t kCeilingChunk = 32 << 20;
constexpr double kCeilingSeconds = 0.5;
constexpr const char* kName = "bench";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class RankRun {
 public:
  explicit RankRun(const Settings& settings)
      : settings_(settings),
        worker_(UniqueFd(settings.peer_fd)),
        parent_(UniqueFd(settings.result_fd)),
        weights_(weights_of(settings)) {
    const int owners = settings.owners > 0 ? settings.owners : settings.ranks;
    if (settings.rank >= owners) return;
    share_ = split_by_bytes(weights_.tensors(), owners)[static_cast<std::size_t>(settings.rank)];
  }

  ~RankRun() {
    std::error_code gone;
    if (settings_.in_place) std::filesystem::remove(file_path(), gone);
  }

  /// Measures everything.
  Result<json> run();
  /// One update that works and one in which a rank dies. Not on that rank: does not return there.
  Result<json> run_until_death();
  Status tell_parent(const json& result) { return parent_.send(result.dump()); }

 private:
  Status start();
  Status meet_worker();
  Result<ParameterServerOptions> server_options() const;
  Status join_readers();
  Status measure_ceilings();
  Status measure_nccl_alone();
  Status measure_peer(Upload& upload);
  Status measure_registration();
  std::string file_path() const {
    return concat(settings_.files, "/gpu-update-", settings_.rank, ".safetensors");
  }
  Result<Registration> write_files();
  Status register_files();
  Status end_in_place();
  Status register_device_memory();
  Status measure_updates();
  Result<UpdateReport> update(const UpdateOptions& options, std::vector<std::string>& numbers);
  Status measure_update(bool verify, json& updates);
  Status measure_failures();
  UpdateOptions update_options(bool verify) const;
  [[noreturn]] void die();
  bool is_recipient() const { return settings_.rank >= settings_.first_recipient; }
  Status ask_worker(const std::string& line);
  Status barrier() { return server_->barrier(kPatienceSeconds); }
  Registration from_memory() const;

  const Settings& settings_;
  LineChannel worker_;
  LineChannel parent_;
  const Weights weights_;
  std::vector<std::uint32_t> share_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<ParameterServer> owner_;  // with `loaded`: of the first job
  std::unique_ptr<ParameterServer> server_;
  std::uint64_t share_bytes_ = 0;
  json result_;
};

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
  if (settings_.nccl_alone) return measure_nccl_alone();
  return measure_ceilings();
}

Status RankRun::measure_nccl_alone() {
  CKPT_ASSIGN_OR_RETURN(result_["nccl"], measure_nccl(*server_, *device_));
  result_["device"] = device_->name();
  return Status();
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

Status RankRun::measure_ceilings() {
  CKPT_ASSIGN_OR_RETURN(const auto upload, Upload::create(*device_));
  CKPT_RETURN_IF_ERROR(barrier());  // all at once
  CKPT_ASSIGN_OR_RETURN(const double rate, upload->measure(kCeilingChunk, kCeilingSeconds));
  CKPT_ASSIGN_OR_RETURN(result_["download_gb_per_s"],
                        upload->measure_back(kCeilingChunk, kCeilingSeconds));
  result_["device"] = device_->name();
  result_["context_bytes"] = device_->context_bytes();
  result_["upload_gb_per_s"] = rate;
  CKPT_RETURN_IF_ERROR(barrier());
  if (settings_.ranks > 1 && settings_.hosts == 1) CKPT_RETURN_IF_ERROR(measure_peer(*upload));
  return settings_.nccl_ceilings ? measure_nccl_alone() : Status();
}

// Every rank copies out of the memory of the next, all at once.
Status RankRun::measure_peer(Upload& upload) {
  const BufferHandle mine = upload.handle();
  const std::string_view ipc(reinterpret_cast<const char*>(mine.ipc.data()), mine.ipc.size());
  const std::string told = concat(mine.shared_memory, '\n', mine.device_uuid, '\n', ipc);
  CKPT_ASSIGN_OR_RETURN(const auto all, server_->all_gather(told, kPatienceSeconds));
  const std::string& text = all[static_cast<std::size_t>((settings_.rank + 1) % settings_.ranks)];
  const std::size_t uuid = text.find('\n') + 1, rest = text.find('\n', uuid) + 1;
  BufferHandle next = mine;
  next.shared_memory = text.substr(0, uuid - 1);
  next.device_uuid = text.substr(uuid, rest - 1 - uuid);
  const auto bytes = std::as_bytes(std::span(text).subspan(rest));
  next.ipc.assign(bytes.begin(), bytes.end());
  CKPT_RETURN_IF_ERROR(barrier());
  CKPT_ASSIGN_OR_RETURN(result_["peer_gb_per_s"],
                        upload.measure_peer(next, kCeilingChunk, kCeilingSeconds));
  return barrier();  // nobody has it open any more
}

Registration RankRun::from_memory() const {
  Registration part;
  for (const std::uint32_t i : share_) {
    part.tensors.push_back({weights_.tensors()[i], weights_.expected(i).data()});
  }
  return part;
}

Result<Registration> RankRun::write_files() {
  const std::string path = file_path();
  std::vector<TensorInfo> infos;
  for (const std::uint32_t i : share_) infos.push_back(weights_.tensors()[i]);
  CKPT_ASSIGN_OR_RETURN(const std::string header, encode_safetensors_header(infos, {}));
  CKPT_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::create(path, infos));
  ThreadPool threads(threads_of(settings_));
  CKPT_RETURN_IF_ERROR(threads.for_each(share_.size(), [&](std::size_t i) {
    return writer.write(i, 0, weights_.expected(share_[i]));
  }));
  CKPT_RETURN_IF_ERROR(writer.finish());
  Registration part;
  std::uint64_t offset = header.size();
  for (const TensorInfo& info : infos) {
    part.files.push_back({info, path, offset});
    offset += info.bytes;
  }
  return part;
}

Status RankRun::register_files() {
  CKPT_ASSIGN_OR_RETURN(const Registration part, write_files());
  const auto register_twice = [&]() -> Status {
    for (const char* which : {"register_files_first_seconds", "register_files_seconds"}) {
      CKPT_RETURN_IF_ERROR(barrier());
      const auto begin = Clock::now();
      CKPT_RETURN_IF_ERROR(server_->register_checkpoint("files", part));
      result_[which] = seconds_since(begin);
      CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint("files"));
    }
    return Status();
  };
  const Status status = register_twice();
  std::filesystem::remove(file_path());
  return status;
}

// Of /dev/shm, whose pages are the checkpoint's own while it is used in place.
std::uint64_t free_shared_memory() { return std::filesystem::space("/dev/shm").free; }

Status RankRun::end_in_place() {
  const std::uint64_t before = free_shared_memory();
  CKPT_RETURN_IF_ERROR(barrier());
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint(kName));
  result_["unregister_in_place_seconds"] = seconds_since(begin);
  CKPT_RETURN_IF_ERROR(barrier());
  // Of all ranks; rings come and go beside them.
  if (free_shared_memory() < before + share_bytes_ / 2) {
    return internal_error(
        concat(file_path(), " was unregistered, and /dev/shm is as full as before"));
  }
  return Status();
}

// From tensors on the GPU into a shared pool: the first use pins it, the second is copies alone.
Status RankRun::register_device_memory() {
  std::uint64_t end = 0;
  const std::byte* first = weights_.expected(0).data();
  for (std::size_t i = 0; i < weights_.tensors().size(); ++i) {
    const auto bytes = weights_.expected(i);
    end = std::max(end, static_cast<std::uint64_t>(bytes.data() - first) + bytes.size());
  }
  CKPT_ASSIGN_OR_RETURN(const auto memory,
                        device_->allocate(end, concat("gpu-update-", random_id())));
  memory->close_to_others();
  CKPT_ASSIGN_OR_RETURN(const auto stream, device_->make_stream());
  CKPT_RETURN_IF_ERROR(stream->copy(memory->data(), first, end));
  CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
  AbortSignal never;
  CKPT_RETURN_IF_ERROR(stream->wait(ticket, Deadline::after_seconds(kPatienceSeconds), never));
  Registration part = from_memory();
  for (MemoryTensor& tensor : part.tensors) tensor.data = memory->data() + (tensor.data - first);
  part.use_shared_pool = true;
  for (const char* which : {"register_device_first_seconds", "register_device_seconds"}) {
    CKPT_RETURN_IF_ERROR(barrier());
    const auto begin = Clock::now();
    CKPT_RETURN_IF_ERROR(server_->register_checkpoint("device", part));
    result_[which] = seconds_since(begin);
    CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint("device"));
  }
  return Status();
}

Status RankRun::measure_registration() {
  for (const std::uint32_t i : share_) share_bytes_ += weights_.tensors()[i].bytes;
  result_["share_bytes"] = share_bytes_;
  Registration in_place;
  if (settings_.in_place) {
    CKPT_ASSIGN_OR_RETURN(in_place, write_files());
    in_place.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
  }
  // Twice: in a virtual machine the first use of memory is the host's work, not ours.
  for (const char* which : {"register_first_seconds", "register_seconds"}) {
    CKPT_RETURN_IF_ERROR(barrier());
    const auto begin = Clock::now();
    const bool last = which == std::string("register_seconds");
    CKPT_RETURN_IF_ERROR(
        server_->register_checkpoint(kName, last && settings_.in_place ? in_place : from_memory()));
    result_[which] = seconds_since(begin);
    CKPT_RETURN_IF_ERROR(barrier());
    if (last) break;
    const auto end_begin = Clock::now();
    CKPT_RETURN_IF_ERROR(server_->unregister_checkpoint(kName));
    result_["unregister_seconds"] = seconds_since(end_begin);
    if (!settings_.files.empty() && !settings_.in_place) CKPT_RETURN_IF_ERROR(register_files());
    if (settings_.from_device) CKPT_RETURN_IF_ERROR(register_device_memory());
  }
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(server_->gather_metas(kName));
  result_["gather_seconds"] = seconds_since(begin);
  if (settings_.in_place && std::filesystem::exists(file_path())) {
    return internal_error(concat(file_path(), " is used in place, and still there"));
  }
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

// Rank 0 cancels when it has a third; how long it takes to return then.
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
    if (cancelled) slowest = std::max(slowest, seconds_since(*cancelled));
    CKPT_RETURN_IF_ERROR(meet_worker());
  }
  result_["cancelled_seconds"] = slowest;
  json works;
  CKPT_RETURN_IF_ERROR(ask_worker("poison"));
  CKPT_RETURN_IF_ERROR(measure_update(true, works));
  return ask_worker("compare");
}

Status RankRun::measure_updates() {
  json& updates = result_["updates"] = json::array();
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
  result_["extra_device_bytes"] = less(least);
  result_["kept_device_bytes"] = less(after.free_bytes);
  return Status();
}

Result<json> RankRun::run() {
  CKPT_RETURN_IF_ERROR(start());
  if (settings_.nccl_alone) return result_;
  CKPT_RETURN_IF_ERROR(measure_registration());
  if (settings_.loaded) CKPT_RETURN_IF_ERROR(join_readers());
  CKPT_RETURN_IF_ERROR(measure_updates());
  if (settings_.in_place) CKPT_RETURN_IF_ERROR(end_in_place());
  result_["rank"] = settings_.rank;
  result_["gpu"] = settings_.rank % settings_.gpus;
  result_["tensors"] = weights_.tensors().size();
  result_["total_bytes"] = weights_.total_bytes();
  return result_;
}

}  // namespace

Status run_rank(const Settings& settings) {
  RankRun run(settings);
  CKPT_ASSIGN_OR_RETURN(const json result, settings.dies ? run.run_until_death() : run.run());
  return run.tell_parent(result);
}

}  // namespace ckpt::bench
