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
      prepare_stages_(std::move(planned.stages)) {}

Pass::~Pass() {
  if (lanes_) lanes_->join();
  if (!buffers_) return;
  // After a failure. Others may not have heard of it yet, and still copy out of this rank's memory.
  buffers_->close_opened();
  // What hears signals for its board, or lets other hosts read its memory, ends before that may go.
  checks_.reset();
  lanes_.reset();
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
  if (const Status status = pass->allocate_and_open(std::move(address)); !status.is_ok()) {
    // Before the memory goes: who opens it in the meantime would have another cause.
    setup.control.abort(setup.epoch, status.on_rank(setup.rank));
    return status;
  }
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
  if (opened().spreads_over_hosts()) {
    if (setup_.transport == nullptr) return no_transport(setup_.rank);
    CKPT_ASSIGN_OR_RETURN(mine.transport_descriptor, setup_.transport->descriptor());
  }
  if (needs_communicator_ && spread_recipients_.front() == setup_.rank) {
    CKPT_ASSIGN_OR_RETURN(mine.communicator_key, setup_.communicator->make_key());
  }
  CKPT_RETURN_IF_ERROR(gather_ready("handles", mine));
  if (needs_communicator_) CKPT_RETURN_IF_ERROR(make_communicator());
  std::set<StreamKey> streams = pulled_streams(plan_->schedule);
  std::erase_if(streams, [this](const StreamKey& stream) {
    return goes_by_group_calls(setup_, stream.second) && stream.first != setup_.rank;
  });
  CKPT_RETURN_IF_ERROR(buffers_->open(recipients_, ready_, streams));
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

Status Pass::make_communicator() {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::byte>& key =
      ready_[opened().index_of(spread_recipients_.front())].communicator_key;
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

Status Pass::start_lanes() {
  CKPT_ASSIGN_OR_RETURN(lanes_, PassLanes::make(opened()));
  // All streams are made before the first lane runs: one that has ended gives its own away, and how
  // many are made would depend on how fast it was.
  CKPT_ASSIGN_OR_RETURN(checks_, setup_.device.make_stream());
  // Everybody can hear signals and has opened everything before anybody's first chunk is done.
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(pass_tag("opened", number_), recipients_,
                                              setup_.deadline, setup_.abort.get(), setup_.epoch));
  buffers_->opened_everywhere();
  // A lane that waits for a worker would otherwise be the first to miss the deadline, and hide who
  // really did.
  return lanes_->start(Deadline::at(setup_.deadline.when() + std::chrono::seconds(1)));
}

OpenedPass Pass::opened() const {
  return {setup_,  number_, *plan_, *buffers_, recipients_, local_recipients_, spread_recipients_,
          offers_, ready_};
}

std::vector<WorkerAddress> Pass::worker_addresses(
    const std::vector<std::vector<int>>& instances) const {
  std::vector<WorkerAddress> addresses(static_cast<std::size_t>(setup_.world_size));
  for (const std::vector<int>& instance : instances) {
    for (std::size_t worker = 0; worker < instance.size(); ++worker) {
      const std::size_t at = opened().index_of(instance[worker]);
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
      setup_.verify,          buffers_->ring(), std::move(checks_), lanes_->offer(),
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
  lanes_->join();
  // Before the barrier below, after which owners free their staging.
  if (!keeps_buffers_) buffers_->close_opened();
  CKPT_RETURN_IF_ERROR(lanes_->report(report));

  CKPT_RETURN_IF_ERROR(
      stage("release", 0, [&] { return channel.release(setup_.deadline, *setup_.abort); }));
  CKPT_RETURN_IF_ERROR(setup_.control.barrier(pass_tag("released", number_), recipients_,
                                              setup_.deadline, setup_.abort.get(), setup_.epoch));
  lanes_.reset();
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
