#include "http/service.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "http/engine_calls.h"
#include "parameter_server/engine_instances.h"
#include "parameter_server/field_metas_json.h"
#include "parameter_server/metas_json.h"

namespace ckpt {
namespace {

/// Fewer than the server's threads that answer calls: others are refused at once.
constexpr int kMostOperations = 4;

/// For the turn of a call that has no time of its own: an update before it may take its 300 s.
Deadline patience() { return Deadline::after_seconds(600); }

/// What has begun on all ranks and failed was not the request's fault, and coming again later is no
/// remedy: neither kUnavailable nor an error of the group "this call".
Status failed_update(const Status& cause) {
  if (cause || cause.code() > StatusCode::kUnavailable) return cause;
  const Status status(StatusCode::kAborted, cause.message());
  return cause.rank() ? status.on_rank(*cause.rank()) : status;
}

bool is_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto end = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end.first == folder.end() && end.second != path.end();
}

/// Before the text of a rank that cannot take part.
constexpr char kRefusal = '!';
constexpr std::chrono::seconds kRefusalPatience{10};

/// "COUNT:name of the checkpoint:ranks", which all ranks must agree on but for the count: the ranks
/// of an instance, known to those that call one, else 0.
std::string offer_of(const std::string& name, const UpdateRequest& request) {
  std::string offer = concat(request.group.size(), ":", name, ":");
  for (const int rank : request.ranks) offer += concat(rank, " ");
  return offer;
}

std::vector<int> recipients_of(const UpdateRequest& request, int world_size) {
  if (!request.ranks.empty()) return request.ranks;
  std::vector<int> all(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

Service::Service(ParameterServer& server, ServiceOptions options)
    : server_(server), options_(std::move(options)), queue_(kMostOperations) {
  state_.rank = server_.rank();
  state_.world_size = server_.world_size();
}

Result<std::vector<std::string>> Service::allowed_files(
    const std::vector<std::string>& files) const {
  if (options_.allowed_folders.empty()) return files;
  std::vector<std::string> canonical;
  for (const std::string& file : files) {
    std::error_code error;
    const auto path = std::filesystem::canonical(file, error);
    const bool below =
        !error && std::any_of(options_.allowed_folders.begin(), options_.allowed_folders.end(),
                              [&](const auto& folder) { return is_below(path, folder); });
    // The same words whether it is there or not: nobody is to learn what lies outside.
    if (!below) {
      return invalid_argument(
          concat(quoted(file), " is not below a folder given with --allow-path"));
    }
    canonical.push_back(path.string());
  }
  return canonical;
}

Status Service::register_files(const std::string& name, const std::vector<std::string>& files) {
  CKPT_ASSIGN_OR_RETURN(const auto turn, queue_.begin(OperationQueue::Kind::kQueued,
                                                      "register " + quoted(name), patience()));
  CheckpointFiles found;  // a rank may have no part
  if (!files.empty()) {
    CKPT_ASSIGN_OR_RETURN(found, open_files(files));
  }
  Registration registration;
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    registration.files.push_back(
        {found.tensors[i], found.files[found.file_of[i]].path, found.offset_of[i]});
  }
  CKPT_RETURN_IF_ERROR(server_.register_checkpoint(name, registration));
  const std::lock_guard lock(state_mutex_);
  checkpoints_[name] = {name, found.tensors.size(), found.total_bytes()};
  return Status::ok();
}

Status Service::unregister(const std::string& name) {
  CKPT_ASSIGN_OR_RETURN(const auto turn, queue_.begin(OperationQueue::Kind::kQueued,
                                                      "unregister " + quoted(name), patience()));
  const Status freed = server_.unregister_checkpoint(name);
  // As in the field's service: who frees a name twice has what was asked for.
  if (freed.code() == StatusCode::kNotFound) {
    log_warning(freed.message());
    return Status::ok();
  }
  CKPT_RETURN_IF_ERROR(freed);
  const std::lock_guard lock(state_mutex_);
  checkpoints_.erase(name);
  if (state_.metas_of == name && !state_.metas_loaded) state_.metas_of.clear();
  return Status::ok();
}

Status Service::gather(const std::string& name) {
  CKPT_ASSIGN_OR_RETURN(const auto turn, queue_.begin(OperationQueue::Kind::kQueued,
                                                      "gather " + quoted(name), patience()));
  CKPT_RETURN_IF_ERROR(failed_update(server_.gather_metas(name)));
  const std::lock_guard lock(state_mutex_);
  state_.metas_of = name;
  state_.metas_loaded = false;
  return Status::ok();
}

Result<std::string> Service::export_metas() {
  CKPT_ASSIGN_OR_RETURN(
      const auto turn, queue_.begin(OperationQueue::Kind::kQueued, "export the metas", patience()));
  const auto exported = server_.export_metas();
  // As in the field's service: before anything was gathered, there is nothing of any rank.
  if (exported.status().code() == StatusCode::kFailedPrecondition) return std::string("{}");
  if (!exported) return exported.status();
  CKPT_ASSIGN_OR_RETURN(const Metas metas, metas_from_json(*exported));
  return metas_to_field_json(metas);
}

Status Service::load_metas(const std::string& json) {
  CKPT_ASSIGN_OR_RETURN(const auto turn,
                        queue_.begin(OperationQueue::Kind::kQueued, "load metas", patience()));
  CKPT_RETURN_IF_ERROR(server_.load_metas(json));
  const std::lock_guard lock(state_mutex_);
  state_.metas_of = server_.checkpoint_name();
  state_.metas_loaded = true;
  return Status::ok();
}

Status Service::check_update(const std::string& name) const {
  const std::lock_guard lock(state_mutex_);
  if (state_.metas_of == name) return Status::ok();
  return failed_precondition(
      concat("the metas of checkpoint ", quoted(name), " are not here (",
             state_.metas_of.empty() ? std::string("none are") : quoted(state_.metas_of) + " are",
             "); POST gather-metas of it, or /v1/metas, to every rank first"));
}

Status Service::update(const std::string& name, const UpdateRequest& request) {
  // Of the whole: other ranks wait in the same update for as long.
  const Deadline deadline = Deadline::after_seconds(request.timeout_seconds);
  CKPT_ASSIGN_OR_RETURN(const auto turn, queue_.begin(OperationQueue::Kind::kAtOnce,
                                                      "update " + quoted(name), deadline));
  CKPT_ASSIGN_OR_RETURN(const int instance_size, agree(name, request, deadline));
  {
    const std::lock_guard lock(state_mutex_);
    progress_loaded_ = progress_total_ = 0;
    update_begin_ = Clock::now();
    state_.update = ServiceState::Update{};
    state_.update->checkpoint = name;
  }
  const auto report = run_update(name, request, instance_size, deadline);
  const Status outcome = failed_update(report.status());
  if (!outcome) log_error("update of ", quoted(name), " failed: ", outcome.message());
  const std::lock_guard lock(state_mutex_);
  state_.last_update = *std::exchange(state_.update, std::nullopt);
  state_.last_update->seconds = std::chrono::duration<double>(Clock::now() - update_begin_).count();
  state_.last_update->loaded_bytes = report ? report->loaded_bytes : progress_loaded_.load();
  state_.last_update->total_bytes = report ? report->total_bytes : progress_total_.load();
  state_.last_error = outcome.message();
  ++(outcome ? state_.updates_done : state_.updates_failed);
  state_.loaded_bytes += state_.last_update->loaded_bytes;
  return outcome;
}

// Ranks that were asked for different things, and those behind one that has no metas, would wait
// for each other until the deadline. The size of the instances: only the rank that calls an engine
// is told whom it serves.
Result<int> Service::agree(const std::string& name, const UpdateRequest& request,
                           Deadline deadline) {
  const Status ready = check_update(name);
  const std::string mine = ready ? offer_of(name, request) : kRefusal + ready.message();
  // One that cannot take part waits no longer than it takes to ask all ranks.
  const Deadline end = ready ? deadline : deadline.earlier(Deadline::after(kRefusalPatience));
  const auto gathered = server_.all_gather(mine, end.remaining_seconds());
  CKPT_RETURN_IF_ERROR(ready);
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> offers, gathered);
  const auto asked_for = [](std::string_view offer) { return offer.substr(offer.find(':')); };
  std::int64_t size = 0;
  bool equal_sizes = true;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].starts_with(kRefusal)) {
      return failed_precondition(offers[rank].substr(1)).on_rank(static_cast<int>(rank));
    }
    if (asked_for(offers[rank]) != asked_for(mine)) {
      return invalid_argument(concat("ranks ", server_.rank(), " and ", rank,
                                     " were asked for updates of different checkpoints or ranks; "
                                     "post the same name and 'ranks' to every rank"));
    }
    CKPT_ASSIGN_OR_RETURN(
        const auto group,
        parse_int(std::string_view(offers[rank]).substr(0, offers[rank].find(':'))));
    if (group == 0) continue;
    equal_sizes = equal_sizes && (size == 0 || size == group);
    size = group;
  }
  const auto recipients = recipients_of(request, server_.world_size()).size();
  // Instances of unequal sizes count as one: it only matters for draft models and CPU workers.
  if (!equal_sizes || (size != 0 && recipients % static_cast<std::size_t>(size) != 0)) {
    return static_cast<int>(recipients);
  }
  return static_cast<int>(size);
}

Result<UpdateReport> Service::run_update(const std::string& name, const UpdateRequest& request,
                                         int instance_size, Deadline deadline) {
  UpdateOptions options;
  options.recipients = request.ranks;
  options.instance_size = instance_size;
  options.timeout_seconds = deadline.remaining_seconds();
  options.progress = [this](std::uint64_t loaded, std::uint64_t total) {
    progress_loaded_ = loaded;
    progress_total_ = total;
  };
  CKPT_ASSIGN_OR_RETURN(
      const auto instances,
      engine_instances(recipients_of(request, server_.world_size()), instance_size));
  // What the core takes for the answer of this rank's engine is the return of its instance's first
  // rank; where that one calls nobody, it says nothing.
  options.engine_answer_means_done =
      request.target.has_value() &&
      std::any_of(instances.begin(), instances.end(),
                  [&](const auto& instance) { return instance.front() == server_.rank(); });
  return server_.update(
      name,
      [&](const std::vector<WorkerAddress>& all_ranks, EngineCallContext& context) {
        return call(request, all_ranks, context);
      },
      options);
}

Status Service::call(const UpdateRequest& request, const std::vector<WorkerAddress>& all_ranks,
                     EngineCallContext& context) {
  {
    const std::lock_guard lock(state_mutex_);
    if (state_.update) state_.update->workers = all_ranks;
  }
  if (!request.target) return Status::ok();
  std::map<std::string, std::string> addresses;
  for (std::size_t rank = 0; rank < all_ranks.size(); ++rank) {
    const WorkerAddress& worker = all_ranks[rank];
    const bool member =
        request.group.empty() ||
        std::binary_search(request.group.begin(), request.group.end(), static_cast<int>(rank));
    if (!member || worker.address.empty()) continue;
    if (!addresses.emplace(worker.key, worker.address).second) {
      return invalid_argument(concat("two workers have the key ", worker.key,
                                     ": name the ranks of the engine's instance in "
                                     "'inference_group_ranks'"));
    }
  }
  EngineUpdateOptions options = request.options;
  if (!request.target->path.empty()) options.rpc_path = request.target->path;
  options.query = request.target->query;
  const Endpoint& engine = request.target->endpoint;
  const EngineClient client(request.target->kind, engine, key_for(engine));
  return call_engine(client, addresses, options, stop_, context);
}

// Whoever may post an update names any address: the key is not for all of them.
std::string Service::key_for(const Endpoint& engine) const {
  if (options_.engine_token.empty()) return {};
  const auto& known = options_.engine_endpoints;
  const bool trusted = known.empty()
                           ? !engine.socket_path.empty() || is_loopback(engine.host)
                           : std::any_of(known.begin(), known.end(), [&](const Endpoint& each) {
                               return each.host == engine.host && each.port == engine.port &&
                                      each.socket_path == engine.socket_path;
                             });
  if (trusted) return options_.engine_token;
  log_warning("the key of --api-key-file is not sent to ", engine.to_string(),
              ": name it with --engine-endpoint if it may have it");
  return {};
}

ServiceState Service::state() const {
  const std::lock_guard lock(state_mutex_);
  ServiceState state = state_;
  state.operation = queue_.running();
  for (const auto& [name, checkpoint] : checkpoints_) state.checkpoints.push_back(checkpoint);
  if (state.update) {
    state.update->seconds = std::chrono::duration<double>(Clock::now() - update_begin_).count();
    state.update->loaded_bytes = progress_loaded_;
    state.update->total_bytes = progress_total_;
  }
  return state;
}

void Service::stop(const Status& cause) {
  queue_.close();
  stop_->raise(cause);
  server_.cancel(cause);
}

}  // namespace ckpt
