#include "parameter_server/pass.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/strings.h"
#include "parameter_server/catalog_fingerprint.h"
#include "worker/closer.h"

namespace ckpt {
namespace {

// After a failure: ranks that were killed or never came so far do not say that they have closed.
constexpr std::chrono::milliseconds kClosingPatience{300};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Dense numbers for host ids, in order of the lowest rank on each. `id_of(rank)` for every rank of
/// the job.
template <typename IdOf>
std::vector<int> number_hosts(int world_size, IdOf id_of) {
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (int rank = 0; rank < world_size; ++rank) {
    hosts.push_back(numbers.emplace(id_of(rank), static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

std::vector<PlanRank> plan_ranks(const std::vector<int>& hosts,
                                 const std::vector<int>& recipients) {
  std::vector<PlanRank> ranks(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) ranks[i].host = hosts[i];
  for (const int rank : recipients) ranks[static_cast<std::size_t>(rank)].recipient = true;
  return ranks;
}

// Without staging, what is received would have to go into the memory of a GPU.
Status check_reachable(const Plan& plan) {
  if (plan.options.receive_into_rings || plan.options.staging_chunks > 0) return Status();
  for (const Part& part : plan.parts) {
    for (const Stop& stop : plan.stops_of(part)) {
      if (stop.rank == part.owner || part.bytes == 0) continue;
      return resource_exhausted(concat(
          "rank ", stop.rank, " takes weights of rank ", part.owner,
          " over the network, which needs staging, and no memory of its GPU is left for that"));
    }
  }
  return Status();
}

}  // namespace

bool CachedPlan::crosses_hosts() const {
  return std::any_of(recipients.begin(), recipients.end(), [&](int rank) {
    return hosts[static_cast<std::size_t>(rank)] !=
           hosts[static_cast<std::size_t>(recipients.front())];
  });
}

Pass::Pass(const PassSetup& setup, std::uint32_t number, std::vector<int> recipients)
    : setup_(setup), number_(number), recipients_(std::move(recipients)) {}

Pass::~Pass() {
  join_lanes();
  if (!buffers_) return;
  buffers_->close_opened();
  buffers_->wait_until_closed(Deadline::after(kClosingPatience));
}

std::string Pass::tag(const char* step) const { return concat(step, "-", number_); }

Result<std::unique_ptr<Pass>> Pass::prepare(const PassSetup& setup, std::uint32_t number,
                                            std::vector<int> recipients, std::string address,
                                            std::shared_ptr<const CachedPlan>& cached) {
  std::unique_ptr<Pass> pass(new Pass(setup, number, std::move(recipients)));
  CKPT_RETURN_IF_ERROR(pass->agree_and_plan(cached));
  const auto begin = std::chrono::steady_clock::now();
  CKPT_RETURN_IF_ERROR(pass->allocate_and_open(std::move(address)));
  pass->prepare_stages_.push_back({"allocate", seconds_since(begin), pass->buffers_->ring_bytes()});
  CKPT_RETURN_IF_ERROR(pass->start_lanes());
  return pass;
}

Status Pass::agree_and_plan(std::shared_ptr<const CachedPlan>& cached) {
  const auto begin = std::chrono::steady_clock::now();
  PassOffer mine;
  mine.host_id = setup_.host_id;
  mine.device_kind = setup_.device.kind();
  mine.device_uuid = setup_.device.uuid();
  CKPT_ASSIGN_OR_RETURN(const DeviceMemory memory, setup_.device.memory());
  mine.available_bytes =
      static_cast<std::uint64_t>(static_cast<double>(memory.free_bytes) * setup_.memory_fraction);
  mine.ring_bytes = setup_.memory.ring_bytes;
  mine.bucket_bytes = setup_.memory.bucket_bytes;
  mine.chunk_bytes = setup_.memory.chunk_bytes;
  mine.catalog_fingerprint = catalog_fingerprint(*setup_.catalog);
  mine.verify = setup_.verify;
  mine.sharing = setup_.memory.sharing;
  mine.instance_size = setup_.instance_size;
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      setup_.control.all_gather(tag("offer"), recipients_, encode(mine), setup_.deadline,
                                setup_.abort.get(), setup_.epoch));
  std::map<std::string, std::uint64_t> sharers;  // ranks per device
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(PassOffer offer, decode_pass_offer(gathered[i]));
    const auto differs = [&](const char* what) {
      return invalid_argument(concat("ranks ", setup_.rank, " and ", recipients_[i],
                                     " were given different ", what,
                                     "; start all ranks with the same options"));
    };
    if (offer.catalog_fingerprint != mine.catalog_fingerprint) {
      return failed_precondition(
          concat("ranks ", setup_.rank, " and ", recipients_[i],
                 " have gathered different metas; call gather_metas on all ranks again"));
    }
    if (offer.device_kind != mine.device_kind) return differs("kinds of device");
    if (offer.ring_bytes != mine.ring_bytes) return differs("ring sizes");
    if (offer.bucket_bytes != mine.bucket_bytes) return differs("bucket sizes");
    if (offer.chunk_bytes != mine.chunk_bytes) return differs("chunk sizes");
    if (offer.verify != mine.verify) return differs("choices of verification");
    if (offer.sharing != mine.sharing) return differs("collectives");
    if (offer.instance_size != mine.instance_size) return differs("instance sizes");
    ++sharers[concat(offer.host_id, '\0', offer.device_uuid)];
    offers_.push_back(std::move(offer));
  }

  const bool per_rank = mine.sharing == RingSharing::kPerRank;
  std::uint64_t available = UINT64_MAX;
  for (const PassOffer& offer : offers_) {
    // The ranks on a device share its memory; without rings of their own they have one together.
    const std::uint64_t share =
        per_rank ? sharers[concat(offer.host_id, '\0', offer.device_uuid)] : 1;
    available = std::min(available, offer.available_bytes / share);
  }
  const std::vector<int> hosts =
      number_hosts(setup_.world_size, [&](int rank) -> const std::string& {
        const auto at = std::lower_bound(recipients_.begin(), recipients_.end(), rank);
        if (at != recipients_.end() && *at == rank)
          return offers_[static_cast<std::size_t>(at - recipients_.begin())].host_id;
        return setup_.catalog->metas().ranks[static_cast<std::size_t>(rank)].instance.host_id;
      });
  for (const int rank : recipients_) {
    if (hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(setup_.rank)]) {
      local_recipients_.push_back(rank);
    }
  }

  // The memory that is free changes from update to update: the sizes decide, not the bytes.
  CKPT_ASSIGN_OR_RETURN(PlanOptions sizes, fit_memory(*setup_.catalog, setup_.memory, available));
  sizes.receive_into_rings = setup_.device.kind() == DeviceKind::kHost;
  const bool fits = cached && cached->catalog == setup_.catalog && cached->hosts == hosts &&
                    cached->recipients == recipients_ &&
                    cached->plan.options.ring_bytes == sizes.ring_bytes &&
                    cached->plan.options.bucket_bytes == sizes.bucket_bytes &&
                    cached->plan.options.chunk_bytes == sizes.chunk_bytes &&
                    cached->plan.options.staging_chunks == sizes.staging_chunks &&
                    cached->plan.options.serial == sizes.serial;
  prepare_stages_.push_back({"agree", seconds_since(begin), 0});
  const auto plan_begin = std::chrono::steady_clock::now();
  if (!fits) {
    auto fresh = std::make_shared<CachedPlan>();
    fresh->catalog = setup_.catalog;
    fresh->hosts = hosts;
    fresh->recipients = recipients_;
    const std::vector<PlanRank> ranks = plan_ranks(hosts, recipients_);
    CKPT_ASSIGN_OR_RETURN(fresh->plan, make_plan(*setup_.catalog, ranks, sizes));
    CKPT_RETURN_IF_ERROR(check_reachable(fresh->plan));
    fresh->schedule = make_schedule(fresh->plan, ranks, setup_.rank);
    cached = std::move(fresh);
  }
  plan_ = cached;
  prepare_stages_.push_back({"plan", seconds_since(plan_begin), 0});
  return Status();
}

Status Pass::gather_ready(const char* step, const PassReady& mine) {
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      setup_.control.all_gather(tag(step), recipients_, encode(mine), setup_.deadline,
                                setup_.abort.get(), setup_.epoch));
  ready_.clear();
  for (const auto& bytes : gathered) {
    CKPT_ASSIGN_OR_RETURN(PassReady ready, decode_pass_ready(bytes));
    ready_.push_back(std::move(ready));
  }
  return Status();
}

Status Pass::allocate_and_open(std::string address) {
  const Plan& plan = plan_->plan;
  // A worker that was told to stop may still read the ring of an update that failed: it counts as
  // used memory until then.
  CKPT_RETURN_IF_ERROR(wait_for_rings(setup_.job, setup_.rank, setup_.deadline, *setup_.abort));
  CKPT_ASSIGN_OR_RETURN(PassBuffers buffers,
                        PassBuffers::allocate(setup_, plan, plan_->schedule, local_recipients_));
  buffers_ = std::make_shared<PassBuffers>(std::move(buffers));

  PassReady mine;
  mine.plan_fingerprint = plan.fingerprint();
  mine.address = std::move(address);
  buffers_->describe(mine);
  CKPT_RETURN_IF_ERROR(gather_ready("handles", mine));
  CKPT_RETURN_IF_ERROR(buffers_->open(recipients_, ready_, pulled_streams(plan_->schedule)));
  // Only now is a ring that another rank made mapped here, and can be registered for readers of
  // other hosts.
  if (setup_.transport != nullptr && plan_->crosses_hosts()) {
    CKPT_RETURN_IF_ERROR(register_for_other_hosts(mine));
    CKPT_RETURN_IF_ERROR(gather_ready("rings", mine));
  }
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i].plan_fingerprint != mine.plan_fingerprint) {
      return internal_error(
          concat("ranks ", setup_.rank, " and ", recipients_[i],
                 " computed different plans; do all ranks run the same version?"));
    }
  }
  return Status();
}

Status Pass::register_for_other_hosts(PassReady& mine) {
  CKPT_ASSIGN_OR_RETURN(mine.transport_descriptor, setup_.transport->descriptor());
  const DeviceBuffer* staging = buffers_->receive_staging();
  if (staging == nullptr && !plan_->plan.options.receive_into_rings) return Status();
  CKPT_ASSIGN_OR_RETURN(
      ring_region_,
      staging != nullptr
          ? setup_.transport->register_memory(staging->data(), staging->size())
          : setup_.transport->register_memory(buffers_->ring(), plan_->plan.options.ring_bytes));
  mine.ring_region = ring_region_->id();
  CKPT_ASSIGN_OR_RETURN(mine.transport_descriptor, setup_.transport->descriptor());
  return Status();
}

Status Pass::connect_peers() {
  std::set<int> pool_ranks, ring_ranks;
  for (const IncomingChunk& incoming : plan_->schedule.receive) {
    (incoming.from_pool ? pool_ranks : ring_ranks).insert(incoming.source);
    if (incoming.next_stop >= 0) ring_ranks.insert(incoming.next_stop);
  }
  if (pool_ranks.empty() && ring_ranks.empty()) return Status();
  if (setup_.transport == nullptr) {
    return unavailable(
        concat("rank ", setup_.rank,
               " has no transport to read from other ranks with; see the log of its start"));
  }
  const auto connect = [&](int rank, std::span<const std::byte> descriptor) -> Result<Peer*> {
    ConnectOptions options;
    options.label = concat("rank ", rank);
    if (descriptor.empty()) {
      return unavailable(concat(
          "rank ", rank, " offers no way to read its memory: it was started without a transport"));
    }
    CKPT_ASSIGN_OR_RETURN(
        auto peer, setup_.transport->connect(descriptor, std::move(options), setup_.deadline));
    peers_.push_back(std::move(peer));
    return peers_.back().get();
  };
  for (const int rank : pool_ranks) {
    const InstanceData& owner =
        setup_.catalog->metas().ranks[static_cast<std::size_t>(rank)].instance;
    RemoteMemory& memory = pools_[rank];
    CKPT_ASSIGN_OR_RETURN(memory.peer, connect(rank, owner.transport_descriptor));
    for (const PoolRegion& region : owner.pool_regions) {
      memory.pieces.push_back({region.pool_offset, region.bytes, region.region});
    }
  }
  for (const int rank : ring_ranks) {
    const PassReady& ready = ready_[index_of(rank)];
    RemoteMemory& memory = rings_[rank];
    CKPT_ASSIGN_OR_RETURN(memory.peer, connect(rank, ready.transport_descriptor));
    const std::uint64_t staged = ready.receive_staging.bytes;
    memory.pieces.push_back(
        {0, staged > 0 ? staged : plan_->plan.options.ring_bytes, ready.ring_region});
    memory.slot_bytes = plan_->plan.options.cross_chunk_bytes;
    memory.slots = staged / memory.slot_bytes;
  }
  return Status();
}

void Pass::run_lane(const char* name, std::function<Status()> body,
                    std::function<std::uint64_t()> bytes) {
  auto lane = std::make_unique<Lane>();
  lane->name = name;
  lane->bytes = std::move(bytes);
  lane->thread = std::thread([this, lane = lane.get(), body = std::move(body)] {
    const auto begin = std::chrono::steady_clock::now();
    lane->status = body();
    lane->seconds = seconds_since(begin);
    if (!lane->status.is_ok() && !setup_.abort->raised()) {
      setup_.control.abort(setup_.epoch, lane->status.on_rank(setup_.rank));
    }
  });
  lanes_.push_back(std::move(lane));
}

void Pass::join_lanes() {
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

Status Pass::start_lanes() {
  const Plan& plan = plan_->plan;
  const Schedule& schedule = plan_->schedule;
  PassBuffers& buffers = *buffers_;
  const bool per_rank = plan.options.sharing == RingSharing::kPerRank;
  RingReaders readers{per_rank ? std::vector<int>{setup_.rank} : local_recipients_, {}};
  if (!schedule.pull.empty() && plan.options.staging_chunks == 0)
    readers.pullers = local_recipients_;
  space_ = std::make_unique<RingCredits>(plan, schedule, buffers.layout(), buffers.progress(),
                                         std::move(readers));
  CKPT_RETURN_IF_ERROR(connect_peers());

  if (!schedule.fill.empty()) {
    if (setup_.pool == nullptr)
      return internal_error("the plan takes tensors from this rank, which holds none");
    FillTarget target;
    if (buffers.fill_staging() != nullptr) {
      target = {nullptr, buffers.fill_staging()->data(), plan.options.chunk_bytes,
                schedule.fill_slots, local_recipients_};
    } else {
      target.ring = buffers.ring();
    }
    CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
    fill_ = std::make_unique<FillLane>(FillContext{plan, schedule, buffers.progress(),
                                                   buffers.layout(), *space_, *setup_.pool,
                                                   setup_.rank, target, std::move(stream)});
  }
  if (setup_.signals != nullptr) {
    ReceiveTarget target;
    if (buffers.receive_staging() != nullptr) {
      target = {nullptr, buffers.receive_staging()->data(), plan.options.cross_chunk_bytes,
                schedule.receive_slots, local_recipients_};
    } else {
      target.ring = buffers.ring();
    }
    CKPT_ASSIGN_OR_RETURN(
        cross_, ChainSpread::create(ChainContext{*setup_.transport, *setup_.signals, plan, schedule,
                                                 buffers.progress(), buffers.layout(), *space_,
                                                 setup_.epoch, number_, setup_.rank, target,
                                                 std::move(pools_), std::move(rings_)}));
  }
  pulled_ =
      std::make_unique<PullProgress>(schedule, buffers.progress(), buffers.layout(), setup_.rank);
  for (const auto& [source, staging] : buffers.stagings()) {
    CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
    local_.push_back(std::make_unique<PeerSpread>(
        PeerContext{plan, schedule, buffers.progress(), buffers.layout(), *space_, *pulled_,
                    setup_.rank, buffers.ring(), source, staging, std::move(stream)}));
  }
  // Everybody can hear signals and has opened everything before anybody's first chunk is done.
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(tag("opened"), recipients_, setup_.deadline,
                                              setup_.abort.get(), setup_.epoch));
  // A lane that waits for a worker would otherwise be the first to miss the deadline, and hide who
  // really did.
  const Deadline late = Deadline::at(setup_.deadline.when() + std::chrono::seconds(1));
  const auto start = [&](const char* name, auto& lane) {
    run_lane(
        name, [this, &lane, late] { return lane.run(late, *setup_.abort); },
        [&lane] { return lane.bytes(); });
  };
  if (fill_) start("fill", *fill_);
  if (cross_ && !schedule.receive.empty()) start("receive", *cross_);
  for (const auto& pull : local_) start("pull", *pull);
  return Status();
}

std::size_t Pass::index_of(int recipient) const {
  return static_cast<std::size_t>(
      std::lower_bound(recipients_.begin(), recipients_.end(), recipient) - recipients_.begin());
}

std::vector<WorkerAddress> Pass::worker_addresses(
    const std::vector<std::vector<int>>& instances) const {
  std::vector<WorkerAddress> addresses(static_cast<std::size_t>(setup_.world_size));
  for (const std::vector<int>& instance : instances) {
    for (std::size_t worker = 0; worker < instance.size(); ++worker) {
      const std::size_t at = index_of(instance[worker]);
      const std::string& uuid = offers_[at].device_uuid;
      addresses[static_cast<std::size_t>(instance[worker])] = {
          uuid.empty() ? concat("CPU-", worker) : uuid, ready_[at].address};
    }
  }
  return addresses;
}

// A worker that has loaded a bucket has opened the ring: when all of the host have, the names can
// go, so that a job that is killed from now on leaves nothing behind.
void Pass::close_when_open_everywhere() {
  if (closed_to_others_) return;
  closed_to_others_ =
      std::all_of(local_recipients_.begin(), local_recipients_.end(), [&](int rank) {
        return buffers_->progress().value(buffers_->layout().acknowledged(rank)) > 0;
      });
  if (closed_to_others_) buffers_->close_to_others();
}

Status Pass::run(WorkerChannel& channel, const WorkerHello& hello, const Callbacks& callbacks,
                 UpdateReport& report) {
  const auto stage = [&](const char* name, std::uint64_t bytes, auto body) -> Status {
    const auto begin = std::chrono::steady_clock::now();
    Status status = body();
    report.stages.push_back({name, seconds_since(begin), bytes});
    return status;
  };
  for (const StageReport& done : prepare_stages_) report.stages.push_back(done);
  report.wire = hello.wire == Wire::kNative ? "native" : "stock";
  report.buckets = plan_->plan.buckets.size();
  report.ring_bytes = buffers_->ring_bytes();
  report.staging_bytes = buffers_->staging_bytes();

  CKPT_RETURN_IF_ERROR(stage("open", 0, [&] {
    return channel.open_ring(buffers_->ring_handle(), setup_.deadline, *setup_.abort);
  }));
  CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
  DeliverContext context{*setup_.catalog,
                         plan_->plan,
                         plan_->schedule,
                         buffers_->progress(),
                         buffers_->layout(),
                         channel,
                         setup_.rank,
                         hello.wire,
                         setup_.verify,
                         buffers_->ring(),
                         std::move(stream),
                         callbacks.first_bucket,
                         nullptr};
  context.progress_report = [&, total = setup_.catalog->total_bytes()](std::uint64_t loaded) {
    close_when_open_everywhere();
    if (callbacks.progress) callbacks.progress(loaded, total);
  };
  DeliverLane deliver(std::move(context));
  Status delivered = stage("deliver", setup_.catalog->total_bytes(),
                           [&] { return deliver.run(setup_.deadline, *setup_.abort); });
  report.loaded_tensors += deliver.counts().tensors;
  report.loaded_bytes += deliver.counts().bytes;
  report.verified_tensors += deliver.counts().verified_tensors;
  CKPT_RETURN_IF_ERROR(delivered);

  // One no is everybody's no: nobody's worker is told to finish unless every worker has everything.
  CKPT_RETURN_IF_ERROR(stage("agree-loaded", 0, [&] {
    return setup_.control.vote(tag("loaded"), recipients_, Status(), setup_.deadline,
                               setup_.abort.get(), setup_.epoch);
  }));
  join_lanes();
  buffers_->close_opened();  // before the barrier below, after which owners free their staging
  for (const auto& lane : lanes_) {
    CKPT_RETURN_IF_ERROR(lane->status);
    StageReport done{lane->name, lane->seconds, lane->bytes()};
    // The pulls of several streams run at once: one stage.
    StageReport& last = report.stages.back();
    if (last.name == done.name) {
      done.seconds = std::max(done.seconds, last.seconds);
      done.bytes += last.bytes;
      report.stages.pop_back();
    }
    report.stages.push_back(std::move(done));
  }
  if (fill_) report.filled_bytes += fill_->bytes();
  if (cross_) report.received_bytes += cross_->bytes();

  CKPT_RETURN_IF_ERROR(
      stage("release", 0, [&] { return channel.release(setup_.deadline, *setup_.abort); }));
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(tag("released"), recipients_, setup_.deadline,
                                              setup_.abort.get(), setup_.epoch));
  cross_.reset();
  peers_.clear();
  if (ring_region_) ring_region_->close(setup_.deadline);
  ring_region_.reset();
  buffers_->close_to_others();
  buffers_.reset();
  CKPT_RETURN_IF_ERROR(
      stage("finish", 0, [&] { return channel.finish(setup_.deadline, *setup_.abort); }));
  CKPT_RETURN_IF_ERROR(setup_.control.vote(tag("finished"), recipients_, Status(), setup_.deadline,
                                           setup_.abort.get(), setup_.epoch));
  ++report.passes;
  return Status();
}

}  // namespace ckpt
