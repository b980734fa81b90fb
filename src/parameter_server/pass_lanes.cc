#include "parameter_server/pass_lanes.h"

#include <algorithm>
#include <string>

#include "collective/chain/chain_spread.h"
#include "collective/nccl/nccl_spread.h"
#include "collective/peer/peer_spread.h"

namespace ckpt {

std::size_t OpenedPass::index_of(int recipient) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(recipients, recipient) -
                                  recipients.begin());
}

bool goes_by_group_calls(const PassSetup& setup, StreamKind kind) {
  return setup.communicator != nullptr && kind == StreamKind::kFill;
}

PassLanes::PassLanes(const OpenedPass& pass)
    : pass_(pass), threads_([&setup = pass.setup](const Status& status) {
        if (!setup.abort->raised()) setup.control.abort(setup.epoch, status.on_rank(setup.rank));
      }) {}

Result<std::unique_ptr<PassLanes>> PassLanes::make(const OpenedPass& pass) {
  std::unique_ptr<PassLanes> lanes(new PassLanes(pass));
  CKPT_RETURN_IF_ERROR(lanes->make_all());
  return lanes;
}

Status PassLanes::make_all() {
  const Plan& plan = pass_.plan.plan;
  const Schedule& schedule = pass_.plan.schedule;
  const bool per_rank = plan.options.sharing == RingSharing::kPerRank;
  RingReaders readers{per_rank ? std::vector<int>{pass_.setup.rank} : pass_.local_recipients, {}};
  if (!schedule.pull.empty() && plan.options.staging_chunks == 0)
    readers.pullers = pass_.local_recipients;
  space_ = std::make_unique<RingCredits>(plan, schedule, pass_.buffers.layout(),
                                         pass_.buffers.progress(), std::move(readers));
  CKPT_ASSIGN_OR_RETURN(
      peers_, PeerMemories::connect(pass_.setup, pass_.plan, pass_.recipients, pass_.ready));
  CKPT_RETURN_IF_ERROR(make_fill());
  CKPT_RETURN_IF_ERROR(pass_.spreads_over_hosts() ? make_credits() : make_cross());
  CKPT_RETURN_IF_ERROR(make_local());
  return make_offer();
}

Status PassLanes::make_fill() {
  const PassSetup& setup = pass_.setup;
  const Plan& plan = pass_.plan.plan;
  const Schedule& schedule = pass_.plan.schedule;
  PassBuffers& buffers = pass_.buffers;
  if (schedule.fill.empty()) return Status();
  if (setup.pool == nullptr)
    return internal_error("the plan takes tensors from this rank, which holds none");
  FillTarget target;
  if (buffers.fill_staging() != nullptr) {
    target = {nullptr, buffers.fill_staging()->data(), plan.options.chunk_bytes,
              schedule.fill_slots, pass_.local_recipients};
    // A group call is over here when what this rank has sent is on its way to everybody.
    if (pass_.spreads_over_hosts()) target.pullers = {setup.rank};
  } else {
    target.ring = buffers.ring();
  }
  CKPT_ASSIGN_OR_RETURN(auto stream, setup.device.make_stream());
  fill_ = std::make_unique<FillLane>(FillContext{plan, schedule, buffers.progress(),
                                                 buffers.layout(), *space_, *setup.pool, setup.rank,
                                                 target, std::move(stream)});
  return Status();
}

// What hears the signals of other hosts, and pulls what comes from them.
Status PassLanes::make_cross() {
  const PassSetup& setup = pass_.setup;
  if (setup.signals == nullptr) return Status();
  const Plan& plan = pass_.plan.plan;
  const Schedule& schedule = pass_.plan.schedule;
  PassBuffers& buffers = pass_.buffers;
  ReceiveTarget target;
  if (buffers.receive_staging() != nullptr) {
    target = {nullptr, buffers.receive_staging()->data(), plan.options.cross_chunk_bytes,
              schedule.receive_slots, pass_.local_recipients};
  } else {
    target.ring = buffers.ring();
  }
  CKPT_ASSIGN_OR_RETURN(
      cross_, ChainSpread::create(ChainContext{
                  peers_->transport(*setup.transport), *setup.signals, plan, schedule,
                  buffers.progress(), buffers.layout(), *space_, setup.epoch, pass_.number,
                  setup.rank, target, peers_->take_pools(), peers_->take_rings()}));
  return Status();
}

Status PassLanes::make_credits() {
  const PassSetup& setup = pass_.setup;
  CKPT_ASSIGN_OR_RETURN(
      credits_, HostCredits::create({*setup.transport, *setup.signals, pass_.plan.schedule,
                                     pass_.buffers.progress(), pass_.buffers.layout(), setup.epoch,
                                     pass_.number, setup.rank},
                                    credit_listeners(), setup.deadline));
  return Status();
}

// One rank of each other host, and how it is reached.
std::map<int, std::vector<std::byte>> PassLanes::credit_listeners() const {
  std::map<std::string, std::vector<int>> by_host;
  for (const int rank : pass_.spread_recipients)
    by_host[pass_.offers[pass_.index_of(rank)].host_id].push_back(rank);
  std::vector<std::vector<int>> hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  std::map<int, std::vector<std::byte>> listeners;
  for (const int rank : ckpt::credit_listeners(hosts, pass_.setup.rank)) {
    listeners[rank] = pass_.ready[pass_.index_of(rank)].transport_descriptor;
  }
  return listeners;
}

Status PassLanes::make_local() {
  const PassSetup& setup = pass_.setup;
  const Plan& plan = pass_.plan.plan;
  const Schedule& schedule = pass_.plan.schedule;
  PassBuffers& buffers = pass_.buffers;
  pulled_ =
      std::make_unique<PullProgress>(schedule, buffers.progress(), buffers.layout(), setup.rank);
  Staging own;
  for (const auto& [source, staging] : buffers.stagings()) {
    if (goes_by_group_calls(setup, source.second)) {
      own = staging;
      continue;
    }
    CKPT_ASSIGN_OR_RETURN(auto stream, setup.device.make_stream());
    local_.push_back(std::make_unique<PeerSpread>(
        PeerContext{plan, schedule, buffers.progress(), buffers.layout(), *space_, *pulled_,
                    setup.rank, buffers.ring(), source, staging, std::move(stream)}));
  }
  if (goes_by_group_calls(setup, StreamKind::kFill) && !schedule.pull.empty()) {
    CKPT_ASSIGN_OR_RETURN(auto stream, setup.device.make_stream());
    local_.push_back(std::make_unique<NcclSpread>(
        NcclContext{plan, schedule, buffers.progress(), buffers.layout(), *pulled_, setup.rank,
                    buffers.ring(), own, setup.communicator->get(), std::move(stream)}));
  }
  return Status();
}

Status PassLanes::make_offer() {
  const PassSetup& setup = pass_.setup;
  if (setup.offered_copy == nullptr || setup.offered_copy->whole()) return Status();
  std::vector<Schedule> others;
  others.reserve(pass_.local_recipients.size());
  std::vector<const Schedule*> schedules;
  for (const int rank : pass_.local_recipients) {
    const bool mine = rank == setup.rank;
    if (!mine) others.push_back(make_schedule(pass_.plan.plan, pass_.plan.ranks, rank));
    schedules.push_back(mine ? &pass_.plan.schedule : &others.back());
  }
  CKPT_ASSIGN_OR_RETURN(auto stream, setup.device.make_stream());
  CKPT_ASSIGN_OR_RETURN(offer_, OfferLane::create(OfferContext{
                                    *pass_.plan.catalog, pass_.plan.plan, pass_.buffers.progress(),
                                    arriving_chunks(schedules, pass_.buffers.layout(), setup.rank),
                                    pass_.buffers.ring(), *setup.offered_copy, std::move(stream)}));
  return Status();
}

Status PassLanes::start(Deadline deadline) {
  const auto run = [&](const char* name, auto& lane) {
    return threads_.start(
        name, [this, &lane, deadline] { return lane.run(deadline, *pass_.setup.abort); },
        [&lane] { return lane.bytes(); });
  };
  if (fill_) CKPT_RETURN_IF_ERROR(run("fill", *fill_));
  if (cross_ && !pass_.plan.schedule.receive.empty()) CKPT_RETURN_IF_ERROR(run("receive", *cross_));
  for (const auto& pull : local_) CKPT_RETURN_IF_ERROR(run("pull", *pull));
  if (offer_) CKPT_RETURN_IF_ERROR(run("offer", *offer_));
  return credits_ ? start_credits(deadline) : Status();
}

Status PassLanes::start_credits(Deadline deadline) {
  const auto run = [&](auto tell) {
    return threads_.start(
        "credits",
        [this, tell, deadline] { return (*credits_.*tell)(deadline, *pass_.setup.abort); },
        [] { return std::uint64_t{0}; });
  };
  CKPT_RETURN_IF_ERROR(run(&HostCredits::tell_filled));
  return run(&HostCredits::tell_acknowledged);
}

Status PassLanes::report(UpdateReport& report) const {
  CKPT_RETURN_IF_ERROR(threads_.report(report.stages));
  if (fill_) report.filled_bytes += fill_->bytes();
  if (cross_) report.received_bytes += cross_->bytes();
  return Status();
}

}  // namespace ckpt
