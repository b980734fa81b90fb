#include "collective/testing/spread_backend.h"

#include <algorithm>
#include <cstring>

#include "base/strings.h"
#include "collective/nccl/host_credits.h"
#include "collective/nccl/kept_communicator.h"
#include "collective/nccl/nccl_spread.h"
#include "collective/testing/fake_nccl.h"
#include "collective/testing/must.h"
#include "device/cuda/driver.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt::testing {
namespace {

std::string label_of(int rank) { return concat("rank ", rank); }

std::shared_ptr<Transport> make_ucx(FakeNetwork&, int rank) {
  return must(make_ucx_transport({.label = label_of(rank)}));
}

Status add_chain(RankPass& pass, Spreads& spreads) {
  CKPT_ASSIGN_OR_RETURN(
      auto chain,
      ChainSpread::create(ChainContext{
          *pass.transport, *pass.signals, pass.plan, pass.schedule, pass.progress, pass.layout,
          pass.space, pass.epoch, pass.pass, pass.rank, pass.received, pass.pools, pass.rings}));
  spreads.push_back(std::move(chain));
  return Status();
}

Status add_pull(RankPass& pass, StreamKey source, Staging staging, Spreads& spreads) {
  CKPT_ASSIGN_OR_RETURN(auto stream, pass.device.make_stream());
  spreads.push_back(std::make_unique<PeerSpread>(
      PeerContext{pass.plan, pass.schedule, pass.progress, pass.layout, pass.space, pass.pulled,
                  pass.rank, pass.ring, source, staging, std::move(stream)}));
  return Status();
}

/// With a communicator for this pass alone.
class NcclForAPass final : public Spread {
 public:
  NcclForAPass(RankPass& pass, std::unique_ptr<NcclCommunicator> communicator,
               std::unique_ptr<CopyStream> stream)
      : communicator_(std::move(communicator)),
        spread_(NcclContext{pass.plan, pass.schedule, pass.progress, pass.layout, pass.pulled,
                            pass.rank, pass.ring, own_staging(pass), *communicator_,
                            std::move(stream)}) {}

  std::string_view name() const override { return spread_.name(); }
  Status run(Deadline deadline, AbortSignal& abort) override {
    return spread_.run(deadline, abort);
  }
  std::uint64_t bytes() const override { return spread_.bytes(); }

 private:
  static Staging own_staging(const RankPass& pass) {
    const auto own = pass.stagings.find({pass.rank, StreamKind::kFill});
    return own == pass.stagings.end() ? Staging{} : own->second;
  }

  const std::unique_ptr<NcclCommunicator> communicator_;
  NcclSpread spread_;
};

/// One key for those of a pass that are spread to.
NcclUniqueId key_of(const RankPass& pass) {
  NcclUniqueId id{};
  const std::string text =
      concat(pass.epoch, '-', pass.pass, '-', pass.layout.spread_ranks().front(), '-',
             reinterpret_cast<std::uintptr_t>(&pass.plan));
  std::copy(text.begin(), text.end(), id.bytes);
  return id;
}

/// A lane that tells other hosts of the progress of a rank.
class CreditsLane final : public Spread {
 public:
  using Tell = Status (HostCredits::*)(Deadline, AbortSignal&);
  CreditsLane(std::shared_ptr<HostCredits> credits, Tell tell)
      : credits_(std::move(credits)), tell_(tell) {}

  std::string_view name() const override { return "credits"; }
  Status run(Deadline deadline, AbortSignal& abort) override {
    return (*credits_.*tell_)(deadline, abort);
  }
  std::uint64_t bytes() const override { return 0; }

 private:
  const std::shared_ptr<HostCredits> credits_;
  const Tell tell_;
};

Status add_credits(RankPass& pass, Spreads& spreads) {
  CKPT_ASSIGN_OR_RETURN(
      auto made, HostCredits::create({*pass.transport, *pass.signals, pass.schedule, pass.progress,
                                      pass.layout, pass.epoch, pass.pass, pass.rank},
                                     pass.listeners, Deadline::after_seconds(30)));
  const std::shared_ptr<HostCredits> credits = std::move(made);
  if (!pass.schedule.fill.empty()) {
    spreads.push_back(std::make_unique<CreditsLane>(credits, &HostCredits::tell_filled));
  }
  spreads.push_back(std::make_unique<CreditsLane>(credits, &HostCredits::tell_acknowledged));
  return Status();
}

/// Rings of ranks: group calls inside a host, and between hosts where every owner is a recipient;
/// else the chain between hosts.
Result<Spreads> chain_and_nccl(RankPass& pass) {
  Spreads spreads;
  CKPT_RETURN_IF_ERROR(pass.listeners.empty() ? add_chain(pass, spreads)
                                              : add_credits(pass, spreads));
  // One thread makes the lanes of all ranks.
  FakeNccl::wait_for_members(false);
  AbortSignal never;
  CKPT_ASSIGN_OR_RETURN(
      auto communicator,
      NcclCommunicator::create(fake_nccl(), key_of(pass), pass.layout.spread_ranks(), pass.rank,
                               pass.device, Deadline::after_seconds(30), never));
  CKPT_ASSIGN_OR_RETURN(auto stream, pass.device.make_stream());
  spreads.push_back(
      std::make_unique<NcclForAPass>(pass, std::move(communicator), std::move(stream)));
  for (const auto& [source, staging] : pass.stagings) {
    if (source.second == StreamKind::kReceive)
      CKPT_RETURN_IF_ERROR(add_pull(pass, source, staging, spreads));
  }
  return spreads;
}

/// Rings of hosts: the chain is all there is.
Result<Spreads> chain_alone(RankPass& pass) {
  Spreads spreads;
  CKPT_RETURN_IF_ERROR(add_chain(pass, spreads));
  return spreads;
}

/// Rings of ranks: the chain between hosts, pulls inside them.
Result<Spreads> chain_and_peer(RankPass& pass) {
  Spreads spreads;
  CKPT_RETURN_IF_ERROR(add_chain(pass, spreads));
  for (const auto& [source, staging] : pass.stagings) {
    CKPT_RETURN_IF_ERROR(add_pull(pass, source, staging, spreads));
  }
  return spreads;
}

/// On one host: pulls alone.
Result<Spreads> peer_alone(RankPass& pass) {
  Spreads spreads;
  for (const auto& [source, staging] : pass.stagings) {
    CKPT_RETURN_IF_ERROR(add_pull(pass, source, staging, spreads));
  }
  return spreads;
}

/// On one host: group calls of the real NCCL.
Result<Spreads> nccl_alone(RankPass& pass) {
  NcclUniqueId id{};
  if (pass.key.size() != sizeof(id.bytes)) return internal_error("a rank has made no key");
  std::memcpy(id.bytes, pass.key.data(), pass.key.size());
  CKPT_ASSIGN_OR_RETURN(auto nccl, load_nccl());
  AbortSignal never;
  CKPT_ASSIGN_OR_RETURN(
      auto communicator,
      NcclCommunicator::create(std::move(nccl), id, pass.layout.spread_ranks(), pass.rank,
                               pass.device, Deadline::after_seconds(60), never));
  CKPT_ASSIGN_OR_RETURN(auto stream, pass.device.make_stream());
  Spreads spreads;
  spreads.push_back(
      std::make_unique<NcclForAPass>(pass, std::move(communicator), std::move(stream)));
  return spreads;
}

/// One device for each GPU and process: ranks that share a GPU are many, and a test makes many.
std::shared_ptr<Device> gpu(int ordinal) {
  static auto* const devices = new std::map<int, std::shared_ptr<Device>>;
  std::shared_ptr<Device>& device = (*devices)[ordinal];
  if (!device) device = must(make_cuda_device(ordinal));
  return device;
}

std::shared_ptr<Device> first_gpu(int) { return gpu(0); }
std::shared_ptr<Device> own_gpu(int rank) { return gpu(rank % cuda_device_count()); }

Status needs_gpus(int count) {
  CKPT_ASSIGN_OR_RETURN(const int found, find_gpus());
  if (found >= count) return Status();
  return unavailable(concat("needs ", count, " GPUs, and there are ", found));
}

}  // namespace

std::vector<SpreadBackend> process_backends() {
  const auto on_host = [](int) { return make_host_device(); };
  const auto one = [] { return needs_gpus(1); };
  const auto two = [] { return needs_gpus(2); };
  SpreadBackend host{"peer_host", RingSharing::kPerRank, on_host, {}, {}, peer_alone, false};
  SpreadBackend shared{
      "peer_cuda_one_gpu", RingSharing::kPerRank, first_gpu, {}, {}, peer_alone, false};
  shared.in_host_memory = false;
  shared.check = one;
  SpreadBackend apart = shared;
  apart.name = "peer_cuda_gpu_each";
  apart.make_device = own_gpu;
  apart.check = two;
  SpreadBackend nccl = apart;
  nccl.name = "nccl_cuda";
  nccl.make_spreads = nccl_alone;
  nccl.check = [two]() -> Status {
    CKPT_RETURN_IF_ERROR(two());
    return load_nccl().status();
  };
  nccl.make_key = []() -> Result<std::vector<std::byte>> {
    CKPT_ASSIGN_OR_RETURN(auto api, load_nccl());
    return KeptCommunicator(std::move(api), false).make_key();
  };
  return {host, shared, apart, nccl};
}

std::vector<SpreadBackend> spread_backends() {
  const auto on_host = [](int) { return make_host_device(); };
  const auto fake = [](FakeNetwork& network, int rank) -> std::shared_ptr<Transport> {
    return network.make_transport(label_of(rank));
  };
  const auto die = [](FakeNetwork& network, Transport& transport) { network.die(transport); };
  const auto close = [](FakeNetwork&, Transport& transport) { transport.close(); };
  SpreadBackend cuda{"peer_cuda", RingSharing::kPerRank, own_gpu, fake, die, chain_and_peer, false};
  cuda.in_host_memory = false;
  cuda.check = [] { return needs_gpus(1); };
  return {{"chain_callback", RingSharing::kPerHost, on_host, fake, die, chain_alone, true},
          {"chain_ucx", RingSharing::kPerHost, on_host, make_ucx, close, chain_alone, false},
          {"peer_callback", RingSharing::kPerRank, on_host, fake, die, chain_and_peer, true},
          {"nccl_fake", RingSharing::kPerRank, on_host, fake, die, chain_and_nccl, true},
          {"nccl_fake_over_hosts", RingSharing::kPerRank, on_host, fake, die, chain_and_nccl, false,
           true},
          {"nccl_fake_over_hosts_ucx", RingSharing::kPerRank, on_host, make_ucx, close,
           chain_and_nccl, false, true},
          cuda};
}

SpreadBackend spread_backend(std::string_view name) {
  const auto backends = spread_backends();
  return *std::ranges::find(backends, name, &SpreadBackend::name);
}

}  // namespace ckpt::testing
