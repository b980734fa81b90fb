#include "collective/testing/spread_backend.h"

#include "base/strings.h"
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

Status add_pulls(RankPass& pass, Spreads& spreads) {
  for (const auto& [source, staging] : pass.stagings) {
    CKPT_ASSIGN_OR_RETURN(auto stream, pass.device.make_stream());
    spreads.push_back(std::make_unique<PeerSpread>(
        PeerContext{pass.plan, pass.schedule, pass.progress, pass.layout, pass.space, pass.pulled,
                    pass.rank, pass.ring, source, staging, std::move(stream)}));
  }
  return Status();
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
  CKPT_RETURN_IF_ERROR(add_pulls(pass, spreads));
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
          {"peer_callback", RingSharing::kPerRank, on_host, fake, die, chain_and_peer, true}};
}

}  // namespace ckpt::testing
