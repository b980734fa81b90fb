// What a rank does in updates: joins them, refuses them, ends them, and waits for others' to end.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/strings.h"
#include "parameter_server/engine_instances.h"
#include "parameter_server/parameter_server_impl.h"
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

bool has_digests(const Catalog& catalog) {
  return catalog.tensors().empty() || catalog.metas().ranks[0].instance.digest_algorithm != 0;
}

}  // namespace

// Whether this rank can take part in an update of `name` at all.
Status ParameterServerImpl::check_update(const std::string& name) const {
  if (!name_in_update().empty()) {
    return failed_precondition(
        concat("an update of ", quoted(name_in_update()), " is prepared already"));
  }
  const Catalog* catalog = registry_->catalog().get();
  if (catalog == nullptr || catalog->metas().checkpoint_name != name) {
    return failed_precondition(
        concat("checkpoint ", quoted(name), " is not the gathered one (",
               catalog ? quoted(catalog->metas().checkpoint_name) : std::string("none"),
               "); call gather_metas(", quoted(name), "), or load_metas, on all ranks first"));
  }
  return Status();
}

Result<std::unique_ptr<PreparedUpdate>> ParameterServerImpl::prepare(const std::string& called,
                                                                     const UpdateOptions& options) {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  // What was loaded has the name that the other job gave it, whatever it is called here.
  const std::string name =
      registry_->was_loaded() ? registry_->catalog()->metas().checkpoint_name : called;
  if (options.verify && registry_->catalog() && !has_digests(*registry_->catalog())) {
    return failed_precondition(
        "the loaded metas have no digests, so that nobody can tell whether what is read is what "
        "was "
        "registered: update without verification (verify=False)");
  }
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
    if (status.is_ok() && (registry_->was_loaded() || !everybody)) status = job_->p2p_status();
    auto instances = engine_instances(recipients, options.instance_size);
    if (status.is_ok()) status = instances.status();
    if (status.is_ok()) status = wait_for_own_ring(update->deadline, call);
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

// A worker that was told to stop may still read the ring of an update that failed. Until then it
// counts as used memory, on a device that other recipients may share: all of them have waited when
// the update begins, before any reads how much is free.
Status ParameterServerImpl::wait_for_own_ring(Deadline deadline, RunningCalls::Call& call) {
  // What is left is for telling the others, who wait for this rank.
  const double patience =
      deadline.remaining_seconds() - std::min(kRefusalSeconds, deadline.remaining_seconds() / 4);
  return wait_for_rings(options_.job, rank(), Deadline::after_seconds(patience), *call.signal());
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
                  closing_,
                  kept_.get(),
                  own == nullptr ? nullptr : &own->pool(),
                  registry_->offered_copy(),
                  registry_->catalog(),
                  rank(),
                  world_size(),
                  spread_.planned_host(job_->host_id(), rank()),
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
  RunningCalls::Call running(running_);
  CKPT_RETURN_IF_ERROR(running.wait_for_turn());
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
  const RunningCalls::Turn turn(running_);
  auto* update = dynamic_cast<OwnUpdate*>(prepared.get());
  if (update != nullptr && update->server == this) give_up(*update, cause);
}

void ParameterServerImpl::drop(OwnUpdate& update) {
  const RunningCalls::Turn turn(running_);
  give_up(update, aborted("the prepared update was given up"));
}

OwnUpdate::~OwnUpdate() {
  if (!over && server != nullptr) server->drop(*this);
}

}  // namespace ckpt
