#include "collective/testing/spread_backend.h"

#include "base/strings.h"
#include "collective/nccl/nccl_spread.h"
#include "collective/testing/fake_nccl.h"
#include "collective/testing/must.h"
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

/// Rings of ranks: the chain between hosts, group calls inside them.
Result<Spreads> chain_and_nccl(RankPass& pass) {
  Spreads spreads;
  CKPT_RETURN_IF_ERROR(add_chain(pass, spreads));
  // One thread makes the lanes of all ranks.
  FakeNccl::wait_for_members(false);
  AbortSignal never;
  CKPT_ASSIGN_OR_RETURN(
      auto communicator,
      NcclCommunicator::create(fake_nccl(), key_of(pass), pass.layout.spread_ranks(), pass.rank,
                               Deadline::after_seconds(30), never));
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

}  // namespace

std::vector<SpreadBackend> spread_backends() {
  const auto on_host = [](int) { return make_host_device(); };
  const auto fake = [](FakeNetwork& network, int rank) -> std::shared_ptr<Transport> {
    return network.make_transport(label_of(rank));
  };
  const auto die = [](FakeNetwork& network, Transport& transport) { network.die(transport); };
  const auto close = [](FakeNetwork&, Transport& transport) { transport.close(); };
  return {{"chain_callback", RingSharing::kPerHost, on_host, fake, die, chain_alone, true},
          {"chain_ucx", RingSharing::kPerHost, on_host, make_ucx, close, chain_alone, false},
          {"peer_callback", RingSharing::kPerRank, on_host, fake, die, chain_and_peer, true},
          {"nccl_fake", RingSharing::kPerRank, on_host, fake, die, chain_and_nccl, true},
          {"nccl_fake_over_hosts", RingSharing::kPerRank, on_host, fake, die, chain_and_nccl, false,
           true}};
}

}  // namespace ckpt::testing
