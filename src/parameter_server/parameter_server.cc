#include "checkpoint_engine/parameter_server.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/env.h"
#include "base/host.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint/metas_json.h"
#include "control/control_client.h"
#include "control/hub.h"
#include "control/rendezvous.h"
#include "parameter_server/engine_instances.h"
#include "parameter_server/metas_exchange.h"
#include "parameter_server/registered_checkpoint.h"
#include "parameter_server/update_session.h"
#include "transport/ucx/ucx_transport.h"
#include "worker/closer.h"
#include "worker/rescue.h"

namespace ckpt {
namespace {

// A worker may be loading when its rank dies, and hears of it only when it asks for more.
constexpr double kRescueSeconds = 300;

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

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Result<std::vector<int>> checked_recipients(std::vector<int> ranks, int world_size) {
  if (ranks.empty()) return all_ranks(world_size);
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

Result<std::shared_ptr<Device>> open_device(const std::string& wanted, int local_rank,
                                            int copy_threads) {
  const int gpus = wanted == "host" ? 0 : cuda_device_count();
  if (wanted == "host" || (wanted == "auto" && gpus == 0)) return make_host_device(copy_threads);
  if (wanted == "auto" || wanted == "cuda")
    return make_cuda_device(gpus > 0 ? local_rank % gpus : 0);
  return invalid_argument(concat("no device ", quoted(wanted), "; there are auto, host and cuda"));
}

/// Who has a ring: on GPUs every rank, on the host all ranks together, unless the caller wants it
/// otherwise.
Result<RingSharing> ring_sharing(const std::string& collective, DeviceKind device) {
  const bool host = device == DeviceKind::kHost;
  if (collective == "auto") return host ? RingSharing::kPerHost : RingSharing::kPerRank;
  if (collective == "peer") return RingSharing::kPerRank;
  if (collective == "chain" && host) return RingSharing::kPerHost;
  if (collective == "chain" || collective == "nccl") {
    return unsupported(concat("collective ", quoted(collective), " is not there for device ",
                              host ? "host" : "cuda", " in this version; use auto or peer"));
  }
  return invalid_argument(
      concat("no collective ", quoted(collective), "; there are auto, peer, nccl and chain"));
}

Result<double> memory_fraction(const ParameterServerOptions& options) {
  double fraction = options.memory_fraction;
  if (fraction == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto from_environment, env_double("PS_MEM_FRACTION"));
    fraction = from_environment.value_or(0.9);
  }
  if (!(fraction > 0 && fraction <= 1)) {
    return invalid_argument(
        concat("a memory fraction of ", fraction, " (PS_MEM_FRACTION) is not in (0, 1]"));
  }
  return fraction;
}

// A copy engine wants large chunks. A processor wants what it copies to be in its caches when the
// worker copies it again.
constexpr std::uint64_t kCudaChunk = 32 << 20;
constexpr std::uint64_t kHostChunk = 8 << 20;
constexpr std::uint64_t kHostBucket = 32 << 20;
constexpr std::uint64_t kSmallestBucket = 4096;

Result<MemoryRequest> memory_request(const ParameterServerOptions& options, DeviceKind device) {
  MemoryRequest request;
  request.ring_bytes = options.ring_bytes;
  request.bucket_bytes = options.bucket_bytes;
  request.chunk_bytes = options.chunk_bytes;
  if (request.bucket_bytes == 0) {
    CKPT_ASSIGN_OR_RETURN(const auto gib, env_double("PS_MAX_BUCKET_SIZE_GB"));
    if (gib) {
      const double bytes = *gib * (1ull << 30);
      if (!(bytes >= kSmallestBucket && bytes < 9e18)) {
        return invalid_argument(concat("PS_MAX_BUCKET_SIZE_GB=", *gib,
                                       " is not a size of at least ",
                                       format_bytes(kSmallestBucket)));
      }
      request.bucket_bytes = static_cast<std::uint64_t>(bytes);
    }
  }
  if (device == DeviceKind::kHost && request.bucket_bytes == 0 && request.ring_bytes == 0) {
    request.bucket_bytes = kHostBucket;
  }
  if (request.chunk_bytes == 0)
    request.chunk_bytes = device == DeviceKind::kHost ? kHostChunk : kCudaChunk;
  return request;
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

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  Status register_checkpoint(const std::string& name, const Registration& part) override;
  Status unregister_checkpoint(const std::string& name, bool force) override;
  Status gather_metas(const std::string& name) override;
  Result<std::string> export_metas() const override;
  Status load_metas(const std::string& json) override;
  Result<std::unique_ptr<PreparedUpdate>> prepare(const std::string& name,
                                                  const UpdateOptions& options) override;
  Result<UpdateReport> commit(std::unique_ptr<PreparedUpdate> prepared,
                              const EngineCall& call) override;
  void abort(std::unique_ptr<PreparedUpdate> prepared, const Status& cause) override;
  Status barrier(double timeout_seconds) override;
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              double timeout_seconds) override;

  void drop(OwnUpdate& update);

 private:
  Status join(const Rendezvous& rendezvous);
  void rescue_workers(const PeerLost& lost);
  Status learn_hosts(const Rendezvous& rendezvous);
  void make_transport();
  void dispatch(int from_rank, std::uint64_t epoch, std::span<const std::byte> message);
  Status check_update(const std::string& name) const;
  Status refuse_update(const std::vector<int>& recipients, const Status& why, Deadline deadline);
  Result<std::unique_ptr<UpdateSession>> prepare_session(const std::string& name,
                                                         std::vector<std::vector<int>> instances,
                                                         const UpdateOptions& options,
                                                         Deadline deadline);
  void give_up(OwnUpdate& update, const Status& cause);
  Status vote_of_all(const Status& mine, Deadline deadline);
  std::string name_in_update() const;

  ParameterServerOptions options_;
  double memory_fraction_ = 0.9;
  MemoryRequest memory_;
  std::string host_id_;
  int local_rank_ = 0;
  int threads_ = 1;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<ControlClient> control_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ChainSignals> signals_;
  SharedPool shared_pool_;

  mutable std::mutex operation_;  // one operation at a time
  std::uint64_t registrations_ = 0;
  std::map<std::string, std::unique_ptr<RegisteredCheckpoint>> checkpoints_;
  MetasExchange exchange_;
  std::shared_ptr<const Catalog> catalog_;  // of the gathered or loaded checkpoint
  bool gathered_here_ = false;              // false: loaded from another job
  std::shared_ptr<const CachedPlan> cached_plan_;
  std::weak_ptr<const std::string> in_update_;  // set while an update is prepared and not over

  std::mutex notes_mutex_;
  std::map<std::uint64_t, std::shared_ptr<NoteBox>> notes_;  // by epoch
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
  server->host_id_ = options.host_id.empty() ? host_id() : options.host_id;
  RendezvousOptions who{options.rank, options.world_size, options.local_rank, std::nullopt};
  if (!options.rendezvous.empty()) who.hub = options.rendezvous;
  CKPT_ASSIGN_OR_RETURN(const Rendezvous rendezvous,
                        resolve_rendezvous(who, process_environment()));
  server->options_ = std::move(options);
  CKPT_RETURN_IF_ERROR(server->join(rendezvous));
  CKPT_RETURN_IF_ERROR(server->learn_hosts(rendezvous));
  CKPT_ASSIGN_OR_RETURN(
      server->device_, open_device(server->options_.device, server->local_rank_, server->threads_));
  CKPT_ASSIGN_OR_RETURN(server->memory_, memory_request(server->options_, server->device_->kind()));
  CKPT_ASSIGN_OR_RETURN(server->memory_.sharing,
                        ring_sharing(server->options_.collective, server->device_->kind()));
  server->make_transport();
  if (const int removed = SharedMemory::remove_abandoned(kSharedMemoryPrefix); removed > 0) {
    log_info("removed ", removed, " objects from /dev/shm that a killed job had left");
  }
  return std::unique_ptr<ParameterServer>(std::move(server));
}

Status ParameterServerImpl::join(const Rendezvous& rendezvous) {
  HostPort hub_address = rendezvous.hub;
  if (rendezvous.rank == 0 && !options_.external_hub) {
    HubOptions hub;
    hub.port = rendezvous.hub.port;
    hub.job = options_.job;
    hub.world_size = rendezvous.world_size;
    hub.secret = options_.secret;
    hub.heartbeat_timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(options_.heartbeat_timeout_seconds * 1000));
    hub.heartbeat_interval = std::min(hub.heartbeat_interval, hub.heartbeat_timeout / 5);
    CKPT_ASSIGN_OR_RETURN(hub_, Hub::start(hub));
    hub_address = hub_->address();
  }
  JoinOptions join;
  join.hub = hub_address;
  join.rank = rendezvous.rank;
  join.world_size = rendezvous.world_size;
  join.job = options_.job;
  join.secret = options_.secret;
  join.host_id = host_id_;
  CKPT_ASSIGN_OR_RETURN(
      control_, ControlClient::join(join, Deadline::after_seconds(options_.join_timeout_seconds)));
  control_->on_peer_lost([this](const PeerLost& lost) { rescue_workers(lost); });
  control_->set_message_handler(
      [this](int from, std::uint64_t epoch, std::span<const std::byte> message) {
        dispatch(from, epoch, message);
      });
  return Status();
}

// Every survivor of the host tries; one of them gets the dead rank's address.
void ParameterServerImpl::rescue_workers(const PeerLost& lost) {
  for (const PeerLost::Channel& channel : lost.channels) {
    const Status status = rescue_worker(channel.address, lost.rank, lost.cause.on_rank(lost.rank),
                                        Deadline::after_seconds(kRescueSeconds));
    if (!status.is_ok() && status.code() != StatusCode::kAlreadyExists) {
      log_warning("the worker of rank ", lost.rank,
                  " cannot be told that its rank is lost: ", status.message());
    }
  }
}

Status ParameterServerImpl::learn_hosts(const Rendezvous& rendezvous) {
  const auto mine = std::as_bytes(std::span(host_id_));
  CKPT_ASSIGN_OR_RETURN(
      const auto hosts,
      control_->all_gather("hosts", all_ranks(world_size()), mine,
                           Deadline::after_seconds(options_.join_timeout_seconds)));
  int ranks_here = 0, before_me = 0;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (!std::ranges::equal(hosts[rank], mine)) continue;
    ++ranks_here;
    if (rank < static_cast<std::size_t>(this->rank())) ++before_me;
  }
  local_rank_ = rendezvous.local_rank.value_or(before_me);
  threads_ = options_.load_threads > 0 ? options_.load_threads
                                       : std::max(1, available_processors() / ranks_here);
  return Status();
}

void ParameterServerImpl::make_transport() {
  if (world_size() == 1) return;
  UcxOptions options;
  options.label = concat("rank ", rank());
  auto transport = make_ucx_transport(options);
  if (!transport) {
    // A job that never reads from another rank does not need one; a plan that does is refused with
    // this in the log.
    log_warning("no transport between ranks: ", transport.status().message());
    return;
  }
  transport_ = std::move(*transport);
  signals_ = std::make_unique<ChainSignals>(*transport_);
}

ParameterServerImpl::~ParameterServerImpl() {
  // A worker that has not heard yet that its update failed would wait for ever.
  const Status told =
      wait_for_closers(options_.job, Deadline::after_seconds(options_.collective_timeout_seconds));
  if (!told.is_ok()) log_warning(told.message());
  checkpoints_.clear();
  signals_.reset();
  transport_.reset();
  if (control_) control_->leave();
  control_.reset();
  if (hub_) {
    const Status left =
        hub_->wait_until_empty(Deadline::after_seconds(options_.hub_linger_seconds));
    if (!left.is_ok()) log_warning("the hub ends before all ranks have left: ", left.message());
  }
}

void ParameterServerImpl::dispatch(int from_rank, std::uint64_t epoch,
                                   std::span<const std::byte> message) {
  auto note = decode_pass_note(message);
  if (!note) return;
  std::shared_ptr<NoteBox> box;
  {
    const std::lock_guard lock(notes_mutex_);
    const auto at = notes_.find(epoch);
    if (at != notes_.end()) box = at->second;
  }
  if (box) box->put(from_rank, std::move(*note));
}

Status ParameterServerImpl::register_checkpoint(const std::string& name, const Registration& part) {
  const std::lock_guard lock(operation_);
  if (name.empty()) return invalid_argument("a checkpoint needs a name").on_rank(rank());
  if (checkpoints_.contains(name)) {
    return already_exists(
               concat("checkpoint ", quoted(name), " is registered already; unregister it first"))
        .on_rank(rank());
  }
  auto registered = RegisteredCheckpoint::create(
      name, part,
      {*device_, transport_.get(), shared_pool_, rank(), ++registrations_, host_id_, threads_,
       options_.collective_timeout_seconds});
  if (!registered)
    return registered.status().with_context(concat("checkpoint ", quoted(name))).on_rank(rank());
  checkpoints_.emplace(name, std::move(*registered));
  return Status();
}

Status ParameterServerImpl::unregister_checkpoint(const std::string& name, bool force) {
  const std::lock_guard lock(operation_);
  if (name == name_in_update()) {
    return failed_precondition(
               concat("checkpoint ", quoted(name), " is being updated; commit or abort that first"))
        .on_rank(rank());
  }
  if (catalog_ && gathered_here_ && catalog_->metas().checkpoint_name == name) {
    catalog_.reset();
    cached_plan_.reset();
  }
  if (checkpoints_.erase(name) == 0 && !force) {
    return not_found(concat("checkpoint ", quoted(name), " is not registered")).on_rank(rank());
  }
  return Status();
}

Status ParameterServerImpl::gather_metas(const std::string& name) {
  const std::lock_guard lock(operation_);
  RankMetas mine;
  if (const auto at = checkpoints_.find(name); at != checkpoints_.end()) {
    mine.layout = at->second->layout();
    CKPT_ASSIGN_OR_RETURN(mine.instance, at->second->instance_data());
  } else {
    // A rank without a part takes part all the same.
    CKPT_ASSIGN_OR_RETURN(auto nothing, RegisteredCheckpoint::create(
                                            name, {},
                                            {*device_, nullptr, shared_pool_, rank(), 0, host_id_,
                                             1, options_.collective_timeout_seconds}));
    mine.layout = nothing->layout();
    CKPT_ASSIGN_OR_RETURN(mine.instance, nothing->instance_data());
  }
  auto catalog = exchange_.gather(*control_, name, std::move(mine),
                                  Deadline::after_seconds(options_.collective_timeout_seconds));
  if (!catalog)
    return catalog.status()
        .with_context(concat("gather of checkpoint ", quoted(name)))
        .on_rank(rank());
  catalog_ = std::move(*catalog);
  gathered_here_ = true;
  cached_plan_.reset();
  return Status();
}

Result<std::string> ParameterServerImpl::export_metas() const {
  const std::lock_guard lock(operation_);
  if (!catalog_)
    return failed_precondition("no metas: call gather_metas first").on_rank(control_->rank());
  return metas_to_json(catalog_->metas());
}

Status ParameterServerImpl::load_metas(const std::string& json) {
  const std::lock_guard lock(operation_);
  CKPT_ASSIGN_OR_RETURN(Metas metas, metas_from_json(json));
  CKPT_ASSIGN_OR_RETURN(Catalog catalog,
                        Catalog::build(std::make_shared<const Metas>(std::move(metas))));
  catalog_ = std::make_shared<const Catalog>(std::move(catalog));
  gathered_here_ = false;
  cached_plan_.reset();
  return Status();
}

// Whether this rank can take part in an update of `name` at all.
Status ParameterServerImpl::check_update(const std::string& name) const {
  if (!name_in_update().empty()) {
    return failed_precondition(
        concat("an update of ", quoted(name_in_update()), " is prepared already"));
  }
  if (!catalog_ || catalog_->metas().checkpoint_name != name) {
    return failed_precondition(
        concat("checkpoint ", quoted(name), " is not the gathered one (",
               catalog_ ? quoted(catalog_->metas().checkpoint_name) : std::string("none"),
               "); call gather_metas(", quoted(name), ") on all ranks first"));
  }
  if (!gathered_here_) {
    return unsupported(
        "the metas were loaded: updates out of another job's memory are not built yet");
  }
  return Status();
}

Result<std::unique_ptr<PreparedUpdate>> ParameterServerImpl::prepare(const std::string& name,
                                                                     const UpdateOptions& options) {
  const std::lock_guard lock(operation_);
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
      auto session = prepare_session(name, std::move(*instances), options, update->deadline);
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
      control_->begin_update(update_tag(recipients), recipients,
                             deadline.earlier(Deadline::after_seconds(kRefusalSeconds)));
  if (!epoch) return why;  // nobody else has begun
  const auto ended = std::make_shared<AbortSignal>();
  control_->watch(*epoch, ended);
  control_->abort(*epoch, why.on_rank(rank()));
  const auto heard = wait_readable(ended->fd(), Deadline::after_seconds(kRefusalSeconds));
  control_->end_update(*epoch);
  return heard.is_ok() && *heard ? ended->cause() : why;
}

Result<std::unique_ptr<UpdateSession>> ParameterServerImpl::prepare_session(
    const std::string& name, std::vector<std::vector<int>> instances, const UpdateOptions& options,
    Deadline deadline) {
  std::vector<int> recipients;
  for (const auto& instance : instances)
    recipients.insert(recipients.end(), instance.begin(), instance.end());
  CKPT_ASSIGN_OR_RETURN(const std::uint64_t epoch,
                        control_->begin_update(update_tag(recipients), recipients, deadline));
  const auto abort = std::make_shared<AbortSignal>();
  control_->watch(epoch, abort);
  const auto notes = std::make_shared<NoteBox>();
  {
    const std::lock_guard lock(notes_mutex_);
    // Sessions are over one after the other; what came late for older ones is of no use.
    notes_.clear();
    notes_[epoch] = notes;
  }
  const auto own = checkpoints_.find(name);
  PassSetup setup{*control_,
                  *device_,
                  transport_.get(),
                  signals_.get(),
                  own == checkpoints_.end() ? nullptr : &own->second->pool(),
                  catalog_,
                  rank(),
                  world_size(),
                  host_id_,
                  options_.job,
                  shared_memory_prefix(options_.job, host_id_),
                  epoch,
                  memory_,
                  memory_fraction_,
                  options.verify,
                  static_cast<std::uint32_t>(instances.front().size()),
                  deadline,
                  abort};
  return UpdateSession::prepare(std::move(setup), name, std::move(instances), options,
                                options_.secret, notes, cached_plan_);
}

Status ParameterServerImpl::vote_of_all(const Status& mine, Deadline deadline) {
  return control_->vote("update-end", all_ranks(world_size()), mine,
                        Deadline::at(deadline.when() + kOutcomePatience));
}

std::string ParameterServerImpl::name_in_update() const {
  const auto name = in_update_.lock();
  return name ? *name : std::string();
}

Result<UpdateReport> ParameterServerImpl::commit(std::unique_ptr<PreparedUpdate> prepared,
                                                 const EngineCall& call) {
  const std::lock_guard lock(operation_);
  auto* update = dynamic_cast<OwnUpdate*>(prepared.get());
  if (update == nullptr || update->server != this) {
    return invalid_argument("commit needs an update that this server has prepared").on_rank(rank());
  }
  update->over = true;
  Result<UpdateReport> result = UpdateReport();
  if (update->session) {
    result = update->session->commit(call);
    update->session.reset();
  } else {
    result->rank = rank();
    result->checkpoint_name = *update->checkpoint_name;
  }
  if (update->all_ranks_vote) {
    const Status outcome = vote_of_all(result.status(), update->deadline);
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
  return control_->barrier("user", all_ranks(world_size()),
                           Deadline::after_seconds(timeout_seconds));
}

Result<std::vector<std::string>> ParameterServerImpl::all_gather(const std::string& mine,
                                                                 double timeout_seconds) {
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      control_->all_gather("user", all_ranks(world_size()), std::as_bytes(std::span(mine)),
                           Deadline::after_seconds(timeout_seconds)));
  std::vector<std::string> texts;
  for (const auto& bytes : gathered) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

}  // namespace ckpt
