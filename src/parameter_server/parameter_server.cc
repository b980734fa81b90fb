#include "checkpoint_engine/parameter_server.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "parameter_server/checkpoint_registry.h"
#include "parameter_server/engine_instances.h"
#include "parameter_server/job_membership.h"
#include "parameter_server/note_router.h"
#include "parameter_server/running_calls.h"
#include "parameter_server/server_settings.h"
#include "parameter_server/update_session.h"
#include "worker/closer.h"

namespace ckpt {
namespace {

// How long a rank that must refuse an update waits for the others to begin it, and for the hub to
// tell them.
constexpr double kRefusalSeconds = 5;
// Beyond an update's deadline, for its outcome to reach those that waited for it.
constexpr std::chrono::seconds kOutcomePatience{5};

std::string update_tag(const std::vector<int>& recipients) {
  std::string tag = "update";
  for (const int recipient : recipients) tag += concat(' ', recipient);
  return tag;
}

Result<std::vector<int>> checked_recipients(std::vector<int> ranks, int world_size) {
  if (ranks.empty()) {
    ranks.resize(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end())
    return invalid_argument(concat("rank ", *twice, " is named twice as a recipient"));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size) {
      return invalid_argument(
          concat("rank ", rank, " cannot be a recipient: the job has ranks 0 to ", world_size - 1));
    }
  }
  return ranks;
}

}  // namespace

class ParameterServerImpl;

/// Either this rank's session, or (for a rank that is no recipient) the right to wait for the end.
struct OwnUpdate : PreparedUpdate {
  ~OwnUpdate() override;

  ParameterServerImpl* server = nullptr;
  std::shared_ptr<const std::string>
      checkpoint_name;  // the server knows by it that the update is not over
  std::unique_ptr<UpdateSession> session;
  bool all_ranks_vote = false;
  bool over = false;
  Deadline deadline = Deadline::after_seconds(0);
};

class ParameterServerImpl : public ParameterServer {
 public:
  static Result<std::unique_ptr<ParameterServer>> create(ParameterServerOptions options);
  ~ParameterServerImpl() override;

  int rank() const override { return job_->rank(); }
  int world_size() const override { return job_->world_size(); }
  Status register_checkpoint(const std::string& name, const Registration& part) override;
  Status unregister_checkpoint(const std::string& name, bool force) override;
  Status gather_metas(const std::string& name) override;
  Result<std::string> export_metas() const override;
  Status load_metas(const std::string& json) override;
  Status offer_loaded() override;
  std::string checkpoint_name() const override;
  Result<std::unique_ptr<PreparedUpdate>> prepare(const std::string& name,
                                                  const UpdateOptions& options) override;
  Result<UpdateReport> commit(std::unique_ptr<PreparedUpdate> prepared,
                              const EngineCall& call) override;
  void abort(std::unique_ptr<PreparedUpdate> prepared, const Status& cause) override;
  void cancel(const Status& cause) override { running_.cancel(cause.on_rank(rank())); }
  Status barrier(double timeout_seconds) override;
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              double timeout_seconds) override;

  void drop(OwnUpdate& update);

 private:
  Status start();
  void forget_stale_plan();
  Status check_update(const std::string& name) const;
  Status refuse_update(const std::vector<int>& recipients, const Status& why, Deadline deadline);
  Result<std::unique_ptr<UpdateSession>> prepare_session(const std::string& name,
                                                         std::vector<std::vector<int>> instances,
                                                         const UpdateOptions& options,
                                                         Deadline deadline,
                                                         RunningCalls::Call& call);
  void end_update_on_cancel(RunningCalls::Call& call, std::uint64_t epoch);
  void give_up(OwnUpdate& update, const Status& cause);
  Status vote_of_all(const Status& mine, Deadline deadline, AbortSignal* abort = nullptr);
  std::string name_in_update() const;

  ParameterServerOptions options_;
  double memory_fraction_ = 0.9;
  MemoryRequest memory_;

  // In this order: each is used by those below it until they are gone.
  NoteRouter notes_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<JobMembership> job_;
  std::unique_ptr<KeptCommunicator> communicator_;  // with collective nccl
  std::unique_ptr<KeptBuffers> kept_;               // with keep_buffers
  std::unique_ptr<CheckpointRegistry> registry_;

  RunningCalls running_;
  mutable std::mutex operation_;  // one operation at a time
  std::shared_ptr<const CachedPlan> cached_plan_;
  std::weak_ptr<const std::string> in_update_;  // set while an update is prepared and not over
};

Result<std::unique_ptr<ParameterServer>> ParameterServer::create(ParameterServerOptions options) {
  return ParameterServerImpl::create(std::move(options));
}

Result<UpdateReport> ParameterServer::update(const std::string& name, const EngineCall& call,
                                             const UpdateOptions& options) {
  CKPT_ASSIGN_OR_RETURN(auto prepared, prepare(name, options));
  return commit(std::move(prepared), call);
}

Result<std::unique_ptr<ParameterServer>> ParameterServerImpl::create(
    ParameterServerOptions options) {
  auto server = std::make_unique<ParameterServerImpl>();
  CKPT_ASSIGN_OR_RETURN(server->memory_fraction_, memory_fraction(options));
  server->options_ = std::move(options);
  CKPT_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<ParameterServer>(std::move(server));
}

Status ParameterServerImpl::start() {
  CKPT_ASSIGN_OR_RETURN(job_,
                        JobMembership::join(options_, [this](int from, std::uint64_t epoch,
                                                             std::span<const std::byte> message) {
                          notes_.deliver(from, epoch, message);
                        }));
  const int threads = options_.load_threads > 0
                          ? options_.load_threads
                          : std::max(1, available_processors() / job_->ranks_on_host());
  CKPT_ASSIGN_OR_RETURN(device_, open_device(options_.device, job_->local_rank(), threads));
  job_->start_transport(device_->uuid());
  CKPT_ASSIGN_OR_RETURN(memory_, memory_request(options_, device_->kind()));
  CKPT_ASSIGN_OR_RETURN(memory_.sharing, ring_sharing(options_.collective, device_->kind()));
  if (options_.collective == "nccl") {
    CKPT_ASSIGN_OR_RETURN(auto nccl, load_nccl());
    communicator_ =
        std::make_unique<KeptCommunicator>(std::move(nccl), options_.release_communicators);
  }
  if (options_.keep_buffers) kept_ = std::make_unique<KeptBuffers>();
  registry_ = std::make_unique<CheckpointRegistry>(*job_, *device_, threads,
                                                   options_.collective_timeout_seconds,
                                                   options_.reader_patience_seconds);
  if (const int removed = SharedMemory::remove_abandoned(kSharedMemoryPrefix); removed > 0) {
    log_info("removed ", removed, " objects from /dev/shm that a killed job had left");
  }
  return Status();
}

ParameterServerImpl::~ParameterServerImpl() {
  // A worker that has not heard yet that its update failed would wait for ever.
  const Status told =
      wait_for_closers(options_.job, Deadline::after_seconds(options_.collective_timeout_seconds));
  if (!told.is_ok()) log_warning(told.message());
}

Status ParameterServerImpl::register_checkpoint(const std::string& name, const Registration& part) {
  const std::lock_guard lock(operation_);
  return registry_->add(name, part);
}

Status ParameterServerImpl::unregister_checkpoint(const std::string& name, bool force) {
  const std::lock_guard lock(operation_);
  if (name == name_in_update()) {
    return failed_precondition(
               concat("checkpoint ", quoted(name), " is being updated; commit or abort that first"))
        .on_rank(rank());
  }
  if (kept_) kept_->release_of(name);
  const Status status = registry_->remove(name, force);
  forget_stale_plan();
  return status;
}

Status ParameterServerImpl::gather_metas(const std::string& name) {
  const std::lock_guard lock(operation_);
  RunningCalls::Call call(running_);
  const Status status = registry_->gather(name, call.signal());
  forget_stale_plan();
  return status;
}

Result<std::string> ParameterServerImpl::export_metas() const {
  const std::lock_guard lock(operation_);
  return registry_->export_metas();
}

Status ParameterServerImpl::load_metas(const std::string& json) {
  const std::lock_guard lock(operation_);
  const Status status = registry_->load_metas(json);
  forget_stale_plan();
  return status;
}

Status ParameterServerImpl::offer_loaded() {
  const std::lock_guard lock(operation_);
  RunningCalls::Call call(running_);
  return registry_->offer_loaded(call.signal());
}

std::string ParameterServerImpl::checkpoint_name() const {
  const std::lock_guard lock(operation_);
  return registry_->catalog() ? registry_->catalog()->metas().checkpoint_name : std::string();
}

// A plan keeps its catalog, which may be large.
void ParameterServerImpl::forget_stale_plan() {
  if (cached_plan_ && cached_plan_->gathered != registry_->catalog()) cached_plan_.reset();
}

// Whether this rank can take part in an update of `name` at all.
Status ParameterServerImpl::check_update(const std::string& name) const {
  if (!name_in_update().empty()) {
    return failed_precondition(
        concat("an update of ", quoted(name_in_update()), " is prepared already"));
  }
  const Catalog* catalog = registry_->catalog().get();
  if (catalog == nullptr || catalog->metas().checkpoint_name != name) {
    return failed_precondition(
        concat("checkpoint ", quoted(name), " is not the ",
               registry_->was_loaded() ? "loaded" : "gathered", " one (",
               catalog ? quoted(catalog->metas().checkpoint_name) : std::string("none"),
               "); call gather_metas(", quoted(name), "), or load_metas, on all ranks first"));
  }
  return Status();
}

Result<std::unique_ptr<PreparedUpdate>> ParameterServerImpl::prepare(const std::string& name,
                                                                     const UpdateOptions& options) {
  const std::lock_guard lock(operation_);
  RunningCalls::Call call(running_);
  // Ranks that were given different recipients cannot even tell each other.
  CKPT_ASSIGN_OR_RETURN(std::vector<int> recipients,
                        checked_recipients(options.recipients, world_size()));
  const bool everybody = recipients.size() == static_cast<std::size_t>(world_size());
  auto update = std::make_unique<OwnUpdate>();
  update->server = this;
  update->checkpoint_name = std::make_shared<const std::string>(name);
  update->all_ranks_vote = options.all_ranks_call && !everybody;
  update->deadline = Deadline::after_seconds(options.timeout_seconds);

  Status status = check_update(name);
  if (std::binary_search(recipients.begin(), recipients.end(), rank())) {
    auto instances = engine_instances(recipients, options.instance_size);
    if (status.is_ok()) status = instances.status();
    if (status.is_ok()) {
      auto session = prepare_session(name, std::move(*instances), options, update->deadline, call);
      status = session.status();
      if (session.is_ok()) update->session = std::move(*session);
    } else {
      status = refuse_update(recipients, status, update->deadline);
    }
  }
  if (!status.is_ok()) {
    update->over = true;
    status = status.on_rank(rank());
    // Those that wait for the end must hear of it.
    return update->all_ranks_vote ? vote_of_all(status, update->deadline) : status;
  }
  in_update_ = update->checkpoint_name;
  return std::unique_ptr<PreparedUpdate>(std::move(update));
}

// This rank cannot take part: the others, which have begun, end with its reason instead of waiting
// for it.
Status ParameterServerImpl::refuse_update(const std::vector<int>& recipients, const Status& why,
                                          Deadline deadline) {
  const auto epoch =
      job_->control().begin_update(update_tag(recipients), recipients,
                                   deadline.earlier(Deadline::after_seconds(kRefusalSeconds)));
  if (!epoch) return why;  // nobody else has begun
  const auto ended = std::make_shared<AbortSignal>();
  job_->control().watch(*epoch, ended);
  job_->control().abort(*epoch, why.on_rank(rank()));
  const auto heard = wait_readable(ended->fd(), Deadline::after_seconds(kRefusalSeconds));
  job_->control().end_update(*epoch);
  return heard.is_ok() && *heard ? ended->cause() : why;
}

Result<std::unique_ptr<UpdateSession>> ParameterServerImpl::prepare_session(
    const std::string& name, std::vector<std::vector<int>> instances, const UpdateOptions& options,
    Deadline deadline, RunningCalls::Call& call) {
  std::vector<int> recipients;
  for (const auto& instance : instances)
    recipients.insert(recipients.end(), instance.begin(), instance.end());
  CKPT_ASSIGN_OR_RETURN(
      const std::uint64_t epoch,
      job_->control().begin_update(update_tag(recipients), recipients, deadline, call.signal()));
  end_update_on_cancel(call, epoch);
  const auto abort = std::make_shared<AbortSignal>();
  job_->control().watch(epoch, abort);
  const auto notes = notes_.open(epoch);
  const RegisteredCheckpoint* own = registry_->find(name);
  PassSetup setup{job_->control(),
                  *device_,
                  job_->transport(),
                  job_->signals(),
                  communicator_.get(),
                  kept_.get(),
                  own == nullptr ? nullptr : &own->pool(),
                  registry_->offered_copy(),
                  registry_->catalog(),
                  rank(),
                  world_size(),
                  job_->host_id(),
                  job_->network(),
                  options_.job,
                  name,
                  shared_memory_prefix(options_.job, job_->host_id()),
                  epoch,
                  memory_,
                  memory_fraction_,
                  options.verify,
                  static_cast<std::uint32_t>(instances.front().size()),
                  deadline,
                  abort};
  ChannelOptions channel;
  channel.job = options_.job;
  channel.secret = options_.secret;
  channel.late_worker_seconds = options_.late_worker_seconds;
  return UpdateSession::prepare(std::move(setup), name, std::move(instances), options,
                                std::move(channel), notes, cached_plan_);
}

void ParameterServerImpl::end_update_on_cancel(RunningCalls::Call& call, std::uint64_t epoch) {
  call.on_cancel([this, epoch](const Status& cause) { job_->control().abort(epoch, cause); });
}

Status ParameterServerImpl::vote_of_all(const Status& mine, Deadline deadline, AbortSignal* abort) {
  return job_->control().vote("update-end", job_->all_ranks(), mine,
                              Deadline::at(deadline.when() + kOutcomePatience), abort);
}

std::string ParameterServerImpl::name_in_update() const {
  const auto name = in_update_.lock();
  return name ? *name : std::string();
}

Result<UpdateReport> ParameterServerImpl::commit(std::unique_ptr<PreparedUpdate> prepared,
                                                 const EngineCall& call) {
  const std::lock_guard lock(operation_);
  RunningCalls::Call running(running_);
  auto* update = dynamic_cast<OwnUpdate*>(prepared.get());
  if (update == nullptr || update->server != this) {
    return invalid_argument("commit needs an update that this server has prepared").on_rank(rank());
  }
  update->over = true;
  Result<UpdateReport> result = UpdateReport();
  if (update->session) {
    end_update_on_cancel(running, update->session->epoch());
    result = update->session->commit(call);
    update->session.reset();
  } else {
    result->rank = rank();
    result->checkpoint_name = *update->checkpoint_name;
  }
  if (update->all_ranks_vote) {
    const Status outcome = vote_of_all(result.status(), update->deadline, running.signal());
    if (result.is_ok() && !outcome.is_ok()) return outcome;
  }
  return result;
}

void ParameterServerImpl::give_up(OwnUpdate& update, const Status& cause) {
  if (std::exchange(update.over, true)) return;
  const Status status = cause.on_rank(rank());
  if (update.session) update.session->abort(status);
  update.session.reset();
  // The outcome is the caller's own cause; what others say of it changes nothing.
  if (update.all_ranks_vote) static_cast<void>(vote_of_all(status, update.deadline));
}

void ParameterServerImpl::abort(std::unique_ptr<PreparedUpdate> prepared, const Status& cause) {
  const std::lock_guard lock(operation_);
  auto* update = dynamic_cast<OwnUpdate*>(prepared.get());
  if (update != nullptr && update->server == this) give_up(*update, cause);
}

void ParameterServerImpl::drop(OwnUpdate& update) {
  const std::lock_guard lock(operation_);
  give_up(update, aborted("the prepared update was given up"));
}

OwnUpdate::~OwnUpdate() {
  if (!over && server != nullptr) server->drop(*this);
}

Status ParameterServerImpl::barrier(double timeout_seconds) {
  RunningCalls::Call call(running_);
  return job_->control().barrier("user", job_->all_ranks(),
                                 Deadline::after_seconds(timeout_seconds), call.signal());
}

Result<std::vector<std::string>> ParameterServerImpl::all_gather(const std::string& mine,
                                                                 double timeout_seconds) {
  RunningCalls::Call call(running_);
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      job_->control().all_gather("user", job_->all_ranks(), std::as_bytes(std::span(mine)),
                                 Deadline::after_seconds(timeout_seconds), call.signal()));
  std::vector<std::string> texts;
  for (const auto& bytes : gathered) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

}  // namespace ckpt
