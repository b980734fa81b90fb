#include "parameter_server/pass.h"

#include <algorithm>
#include <chrono>

#include "base/strings.h"
#include "parameter_server/foreign_owners.h"

namespace ckpt {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Pass::Pass(const PassSetup& setup, std::uint32_t number, PlannedPass planned)
    : setup_(setup),
      number_(number),
      recipients_(std::move(planned.recipients)),
      offers_(std::move(planned.offers)),
      local_recipients_(std::move(planned.local_recipients)),
      spread_recipients_(std::move(planned.spread_recipients)),
      plan_(std::move(planned.plan)),
      needs_communicator_(planned.needs_communicator),
      keeps_buffers_(planned.keeps_buffers),
      reuses_buffers_(planned.reuses_buffers),
      lanes_([this](const Status& status) {
        if (!setup_.abort->raised())
          setup_.control.abort(setup_.epoch, status.on_rank(setup_.rank));
      }),
      prepare_stages_(std::move(planned.stages)) {}

Pass::~Pass() {
  lanes_.join();
  if (!buffers_) return;
  // After a failure. Others may not have heard of it yet, and still copy out of this rank's memory.
  buffers_->close_opened();
  // What hears signals for its board, or lets other hosts read its memory, ends before that may go.
  offer_.reset();
  checks_.reset();
  local_.clear();
  pulled_.reset();
  credits_.reset();
  cross_.reset();
  fill_.reset();
  peers_.reset();
  ring_region_.reset();
  PassBuffers& buffers = *buffers_;
  setup_.closing.free_when_closed(
      concat("the memory of rank ", setup_.rank, " of an update that failed"), std::move(buffers_),
      [&buffers] { return buffers.in_use(); });
}

Result<std::unique_ptr<Pass>> Pass::prepare(const PassSetup& setup, std::uint32_t number,
                                            std::vector<int> recipients, std::string address,
                                            std::shared_ptr<const CachedPlan>& cached) {
  CKPT_ASSIGN_OR_RETURN(PlannedPass planned,
                        plan_pass(setup, number, std::move(recipients), cached));
  std::unique_ptr<Pass> pass(new Pass(setup, number, std::move(planned)));
  const auto begin = std::chrono::steady_clock::now();
  CKPT_RETURN_IF_ERROR(pass->allocate_and_open(std::move(address)));
  pass->prepare_stages_.push_back({"allocate", seconds_since(begin), 0});
  if (const DeviceBuffer* staging = pass->buffers_->receive_staging()) {
    pass->prepare_stages_.push_back({pass->buffers_->receives_on_device()
                                         ? "receive staging on the device"
                                         : "receive staging in host memory",
                                     0, staging->size()});
  }
  if (const Status status = pass->start_lanes(); !status.is_ok()) {
    // Lanes that run already wait for the others.
    setup.control.abort(setup.epoch, status.on_rank(setup.rank));
    setup.abort->raise(status.on_rank(setup.rank));
    return status;
  }
  return pass;
}

Status Pass::gather_ready(const char* step, const PassReady& mine) {
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      setup_.control.all_gather(pass_tag(step, number_), recipients_, encode(mine), setup_.deadline,
                                setup_.abort.get(), setup_.epoch));
  ready_.clear();
  for (const auto& bytes : gathered) {
    CKPT_ASSIGN_OR_RETURN(PassReady ready, decode_pass_ready(bytes));
    ready_.push_back(std::move(ready));
  }
  return Status();
}

std::optional<PassMemory> Pass::kept_from_before() {
  if (setup_.kept == nullptr) return std::nullopt;
  if (reuses_buffers_) return setup_.kept->take();
  // Not all of these recipients have a set in common (one was restarted, say): all drop theirs.
  if (setup_.kept->offer(recipients_) != KeptBuffers::kNotKept) setup_.kept->release();
  return std::nullopt;
}

Status Pass::allocate_and_open(std::string address) {
  const Plan& plan = plan_->plan;
  buffers_ = std::make_shared<PassBuffers>(setup_, plan_->schedule, local_recipients_,
                                           spread_recipients_, kept_from_before(), keeps_buffers_);
  CKPT_RETURN_IF_ERROR(buffers_->allocate(setup_, plan, plan_->schedule));

  PassReady mine;
  mine.plan_fingerprint = plan.fingerprint();
  mine.address = std::move(address);
  buffers_->describe(mine);
  if (spreads_over_hosts()) {
    if (setup_.transport == nullptr) return no_transport(setup_.rank);
    CKPT_ASSIGN_OR_RETURN(mine.transport_descriptor, setup_.transport->descriptor());
  }
  if (needs_communicator_ && spread_recipients_.front() == setup_.rank) {
    CKPT_ASSIGN_OR_RETURN(mine.communicator_key, setup_.communicator->make_key());
  }
  CKPT_RETURN_IF_ERROR(gather_ready("handles", mine));
  if (needs_communicator_) CKPT_RETURN_IF_ERROR(make_communicator());
  std::set<StreamKey> opened = pulled_streams(plan_->schedule);
  std::erase_if(opened, [this](const StreamKey& stream) {
    return by_nccl(stream.second) && stream.first != setup_.rank;
  });
  CKPT_RETURN_IF_ERROR(buffers_->open(recipients_, ready_, opened));
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

// What those that are spread to fill goes through group calls; what comes from elsewhere lies in
// host memory, and is pulled.
bool Pass::by_nccl(StreamKind kind) const {
  return setup_.communicator != nullptr && kind == StreamKind::kFill;
}

Status Pass::make_communicator() {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::byte>& key = ready_[index_of(spread_recipients_.front())].communicator_key;
  CKPT_RETURN_IF_ERROR(setup_.communicator->make(key, spread_recipients_, setup_.rank,
                                                 setup_.device, setup_.deadline, *setup_.abort));
  prepare_stages_.push_back(
      {"communicator", seconds_since(begin), setup_.communicator->device_bytes()});
  return Status();
}

Status Pass::register_for_other_hosts(PassReady& mine) {
  CKPT_ASSIGN_OR_RETURN(mine.transport_descriptor, setup_.transport->descriptor());
  const DeviceBuffer* staging = buffers_->receive_staging();
  // Nobody reads what lies in memory of the device.
  if (buffers_->receives_on_device()) return Status();
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

Status Pass::make_local_lanes() {
  const Plan& plan = plan_->plan;
  const Schedule& schedule = plan_->schedule;
  PassBuffers& buffers = *buffers_;
  pulled_ =
      std::make_unique<PullProgress>(schedule, buffers.progress(), buffers.layout(), setup_.rank);
  Staging own;
  for (const auto& [source, staging] : buffers.stagings()) {
    if (by_nccl(source.second)) {
      own = staging;
      continue;
    }
    CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
    local_.push_back(std::make_unique<PeerSpread>(
        PeerContext{plan, schedule, buffers.progress(), buffers.layout(), *space_, *pulled_,
                    setup_.rank, buffers.ring(), source, staging, std::move(stream)}));
  }
  if (by_nccl(StreamKind::kFill) && !schedule.pull.empty()) {
    CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
    local_.push_back(std::make_unique<NcclSpread>(
        NcclContext{plan, schedule, buffers.progress(), buffers.layout(), *pulled_, setup_.rank,
                    buffers.ring(), own, setup_.communicator->get(), std::move(stream)}));
  }
  return Status();
}

Status Pass::start_credits(Deadline deadline) {
  const auto start = [&](auto tell) {
    return lanes_.start(
        "credits", [this, tell, deadline] { return (*credits_.*tell)(deadline, *setup_.abort); },
        [] { return std::uint64_t{0}; });
  };
  CKPT_RETURN_IF_ERROR(start(&HostCredits::tell_filled));
  return start(&HostCredits::tell_acknowledged);
}

// One rank of each other host, and how it is reached.
std::map<int, std::vector<std::byte>> Pass::credit_listeners() const {
  std::map<std::string, std::vector<int>> by_host;
  for (const int rank : spread_recipients_)
    by_host[offers_[index_of(rank)].host_id].push_back(rank);
  std::vector<std::vector<int>> hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  std::map<int, std::vector<std::byte>> listeners;
  for (const int rank : ckpt::credit_listeners(hosts, setup_.rank)) {
    listeners[rank] = ready_[index_of(rank)].transport_descriptor;
  }
  return listeners;
}

// What hears signals of other hosts.
Status Pass::make_cross_lane() {
  const Plan& plan = plan_->plan;
  const Schedule& schedule = plan_->schedule;
  PassBuffers& buffers = *buffers_;
  if (spreads_over_hosts()) {
    CKPT_ASSIGN_OR_RETURN(
        credits_,
        HostCredits::create({*setup_.transport, *setup_.signals, schedule, buffers.progress(),
                             buffers.layout(), setup_.epoch, number_, setup_.rank},
                            credit_listeners(), setup_.deadline));
    return Status();
  }
  if (setup_.signals == nullptr) return Status();
  ReceiveTarget target;
  if (buffers.receive_staging() != nullptr) {
    target = {nullptr, buffers.receive_staging()->data(), plan.options.cross_chunk_bytes,
              schedule.receive_slots, local_recipients_};
  } else {
    target.ring = buffers.ring();
  }
  CKPT_ASSIGN_OR_RETURN(
      cross_, ChainSpread::create(ChainContext{
                  peers_->transport(*setup_.transport), *setup_.signals, plan, schedule,
                  buffers.progress(), buffers.layout(), *space_, setup_.epoch, number_, setup_.rank,
                  target, peers_->take_pools(), peers_->take_rings()}));
  return Status();
}

Status Pass::make_offer_lane() {
  if (setup_.offered_copy == nullptr || setup_.offered_copy->whole()) return Status();
  std::vector<Schedule> others;
  others.reserve(local_recipients_.size());
  std::vector<const Schedule*> schedules;
  for (const int rank : local_recipients_) {
    const bool mine = rank == setup_.rank;
    if (!mine) others.push_back(make_schedule(plan_->plan, plan_->ranks, rank));
    schedules.push_back(mine ? &plan_->schedule : &others.back());
  }
  CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
  CKPT_ASSIGN_OR_RETURN(offer_, OfferLane::create(OfferContext{
                                    *plan_->catalog, plan_->plan, buffers_->progress(),
                                    arriving_chunks(schedules, buffers_->layout(), setup_.rank),
                                    buffers_->ring(), *setup_.offered_copy, std::move(stream)}));
  return Status();
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
  CKPT_ASSIGN_OR_RETURN(peers_, PeerMemories::connect(setup_, *plan_, recipients_, ready_));

  if (!schedule.fill.empty()) {
    if (setup_.pool == nullptr)
      return internal_error("the plan takes tensors from this rank, which holds none");
    FillTarget target;
    if (buffers.fill_staging() != nullptr) {
      target = {nullptr, buffers.fill_staging()->data(), plan.options.chunk_bytes,
                schedule.fill_slots, local_recipients_};
      // A group call is over here when what this rank has sent is on its way to everybody.
      if (spreads_over_hosts()) target.pullers = {setup_.rank};
    } else {
      target.ring = buffers.ring();
    }
    CKPT_ASSIGN_OR_RETURN(auto stream, setup_.device.make_stream());
    fill_ = std::make_unique<FillLane>(FillContext{plan, schedule, buffers.progress(),
                                                   buffers.layout(), *space_, *setup_.pool,
                                                   setup_.rank, target, std::move(stream)});
  }
  CKPT_RETURN_IF_ERROR(make_cross_lane());
  CKPT_RETURN_IF_ERROR(make_local_lanes());
  CKPT_RETURN_IF_ERROR(make_offer_lane());
  // All streams are made before the first lane runs: one that has ended gives its own away, and how
  // many are made would depend on how fast it was.
  CKPT_ASSIGN_OR_RETURN(checks_, setup_.device.make_stream());
  // Everybody can hear signals and has opened everything before anybody's first chunk is done.
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(pass_tag("opened", number_), recipients_,
                                              setup_.deadline, setup_.abort.get(), setup_.epoch));
  buffers.opened_everywhere();
  // A lane that waits for a worker would otherwise be the first to miss the deadline, and hide who
  // really did.
  const Deadline late = Deadline::at(setup_.deadline.when() + std::chrono::seconds(1));
  const auto start = [&](const char* name, auto& lane) {
    return lanes_.start(
        name, [this, &lane, late] { return lane.run(late, *setup_.abort); },
        [&lane] { return lane.bytes(); });
  };
  if (fill_) CKPT_RETURN_IF_ERROR(start("fill", *fill_));
  if (cross_ && !schedule.receive.empty()) CKPT_RETURN_IF_ERROR(start("receive", *cross_));
  for (const auto& pull : local_) CKPT_RETURN_IF_ERROR(start("pull", *pull));
  if (offer_) CKPT_RETURN_IF_ERROR(start("offer", *offer_));
  return credits_ ? start_credits(late) : Status();
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

// After the barrier behind every recipient's release: nobody reads any of it.
void Pass::free_or_keep_buffers() {
  if (keeps_buffers_) {
    constexpr std::uint64_t kPassesOfAnEpoch = 1 << 16;
    setup_.kept->put(buffers_->leave(),
                     KeptBuffers::kFirstId + setup_.epoch * kPassesOfAnEpoch + number_, recipients_,
                     setup_.checkpoint_name);
  } else {
    buffers_->close_to_others();
  }
  buffers_.reset();
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
  report.allocated_bytes += buffers_->allocated_bytes();
  if (setup_.communicator != nullptr) {
    report.communicator_bytes = setup_.communicator->device_bytes();
  }

  CKPT_RETURN_IF_ERROR(stage("open", 0, [&] {
    return channel.open_ring(buffers_->ring_handle(), setup_.deadline, *setup_.abort);
  }));
  DeliverContext context{
      *plan_->catalog,        plan_->plan,      plan_->schedule,    buffers_->progress(),
      buffers_->layout(),     channel,          setup_.rank,        hello.wire,
      setup_.verify,          buffers_->ring(), std::move(checks_), offer_.get(),
      callbacks.first_bucket, nullptr};
  context.progress_report = [&, total = setup_.catalog->total_bytes()](std::uint64_t loaded) {
    close_when_open_everywhere();
    if (callbacks.progress) callbacks.progress(loaded, total);
  };
  DeliverLane deliver(std::move(context));
  Status delivered = stage("deliver", setup_.catalog->total_bytes(),
                           [&] { return deliver.run(setup_.deadline, *setup_.abort); });
  if (deliver.counts().checked_bytes > 0) {
    report.stages.push_back(
        {"verify", deliver.counts().check_seconds, deliver.counts().checked_bytes});
  }
  report.loaded_tensors += deliver.counts().tensors;
  report.loaded_bytes += deliver.counts().bytes;
  report.verified_tensors += deliver.counts().verified_tensors;
  CKPT_RETURN_IF_ERROR(delivered);

  // One no is everybody's no: nobody's worker is told to finish unless every worker has everything.
  CKPT_RETURN_IF_ERROR(stage("agree-loaded", 0, [&] {
    return setup_.control.vote(pass_tag("loaded", number_), recipients_, Status(), setup_.deadline,
                               setup_.abort.get(), setup_.epoch);
  }));
  lanes_.join();
  // Before the barrier below, after which owners free their staging.
  if (!keeps_buffers_) buffers_->close_opened();
  CKPT_RETURN_IF_ERROR(lanes_.report(report.stages));
  if (fill_) report.filled_bytes += fill_->bytes();
  if (cross_) report.received_bytes += cross_->bytes();

  CKPT_RETURN_IF_ERROR(
      stage("release", 0, [&] { return channel.release(setup_.deadline, *setup_.abort); }));
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(pass_tag("released", number_), recipients_,
                                              setup_.deadline, setup_.abort.get(), setup_.epoch));
  cross_.reset();
  credits_.reset();
  peers_.reset();
  if (ring_region_) ring_region_->close(setup_.deadline);
  ring_region_.reset();
  free_or_keep_buffers();
  if (setup_.communicator != nullptr) {
    setup_.communicator->update_over(setup_.deadline, *setup_.abort);
  }
  CKPT_RETURN_IF_ERROR(
      stage("finish", 0, [&] { return channel.finish(setup_.deadline, *setup_.abort); }));
  CKPT_RETURN_IF_ERROR(setup_.control.vote(pass_tag("finished", number_), recipients_, Status(),
                                           setup_.deadline, setup_.abort.get(), setup_.epoch));
  if (keeps_buffers_) report.kept_bytes = report.ring_bytes + report.staging_bytes;
  ++report.passes;
  return Status();
}

}  // namespace ckpt
