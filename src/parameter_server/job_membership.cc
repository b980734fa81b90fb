#include "parameter_server/job_membership.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "base/strings.h"
#include "parameter_server/engine_transport.h"
#include "transport/network/network_choice.h"
#include "transport/ucx/ucx_transport.h"
#include "worker/rescue.h"

namespace ckpt {
namespace {

// A worker may be loading when its rank dies, and hears of it only when it asks for more.
constexpr double kRescueSeconds = 300;

// Every survivor of the host tries; one of them gets the dead rank's address.
void rescue_workers(const std::string& job, const PeerLost& lost) {
  for (const PeerLost::Channel& channel : lost.channels) {
    const Status status =
        rescue_worker(job, channel.address, lost.rank, lost.cause.on_rank(lost.rank),
                      Deadline::after_seconds(kRescueSeconds));
    if (!status.is_ok() && status.code() != StatusCode::kAlreadyExists) {
      log_warning("the worker of rank ", lost.rank,
                  " cannot be told that its rank is lost: ", status.message());
    }
  }
}

// A job that nobody else can be part of, or that meets on the loopback interface, is not offered to
// the network. Any other listens everywhere: the rendezvous may be a name that only others resolve.
std::string hub_interface(const Rendezvous& rendezvous) {
  const std::string& host = rendezvous.hub.host;
  if (host == "::1") return host;
  if (host.starts_with("127.") || rendezvous.world_size == 1) return "127.0.0.1";
  return "";
}

}  // namespace

Result<std::unique_ptr<JobMembership>> JobMembership::join(const ParameterServerOptions& options,
                                                           MessageHandler on_message,
                                                           AbortSignal* abort) {
  RendezvousOptions who{options.rank, options.world_size, options.local_rank, std::nullopt};
  if (!options.rendezvous.empty()) who.hub = options.rendezvous;
  CKPT_ASSIGN_OR_RETURN(const Rendezvous rendezvous,
                        resolve_rendezvous(who, process_environment()));
  std::unique_ptr<JobMembership> member(new JobMembership(options));
  CKPT_RETURN_IF_ERROR(member->take_seat(rendezvous, std::move(on_message), abort));
  CKPT_RETURN_IF_ERROR(member->learn_hosts(rendezvous, abort));
  return member;
}

JobMembership::JobMembership(const ParameterServerOptions& options)
    : options_(options), host_id_(options.host_id.empty() ? ckpt::host_id() : options.host_id) {}

Status JobMembership::take_seat(const Rendezvous& rendezvous, MessageHandler on_message,
                                AbortSignal* abort) {
  HostPort hub_address = rendezvous.hub;
  master_host_ = rendezvous.hub.host;
  if (rendezvous.rank == 0 && !options_.external_hub) {
    HubOptions hub;
    hub.bind_host = hub_interface(rendezvous);
    hub.port = rendezvous.hub.port;
    hub.job = options_.job;
    hub.world_size = rendezvous.world_size;
    hub.secret = options_.secret;
    hub.heartbeat_timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(options_.heartbeat_timeout_seconds * 1000));
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
  join.hub_is_rank_0 = !options_.external_hub;
  join.abort = abort;
  const double patience = options_.join_timeout_seconds > 0 ? options_.join_timeout_seconds
                                                            : options_.heartbeat_timeout_seconds;
  CKPT_ASSIGN_OR_RETURN(
      control_, ControlClient::join(join, std::chrono::milliseconds(static_cast<std::int64_t>(
                                              std::min(patience, 1e9) * 1000))));
  control_->on_peer_lost([job = options_.job](const PeerLost& lost) { rescue_workers(job, lost); });
  control_->set_message_handler(std::move(on_message));
  return Status();
}

Status JobMembership::learn_hosts(const Rendezvous& rendezvous, AbortSignal* abort) {
  const auto mine = std::as_bytes(std::span(host_id_));
  CKPT_ASSIGN_OR_RETURN(
      const auto hosts,
      control_->all_gather("hosts", all_ranks(), mine,
                           Deadline::after_seconds(options_.collective_timeout_seconds), abort));
  int before_me = 0;
  ranks_on_host_ = 0;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (!std::ranges::equal(hosts[rank], mine)) continue;
    ++ranks_on_host_;
    if (rank < static_cast<std::size_t>(this->rank())) ++before_me;
  }
  local_rank_ = rendezvous.local_rank.value_or(before_me);
  return Status();
}

void JobMembership::start_transport(const std::string& device_uuid) {
  NetworkRequest request;
  request.advertise = options_.advertise;
  request.master_host = master_host_;
  request.device_uuid = device_uuid;
  request.local_rank = local_rank_;
  request.local_ranks = ranks_on_host_;
  const auto make = [&]() -> Result<std::unique_ptr<Transport>> {
    CKPT_ASSIGN_OR_RETURN(const NetworkChoice choice, choose_network(request));
    log_info("rank ", rank(), " is reached at ", choice.text);
    network_ = {choice.address.address, choice.devices, choice.mbit};
    p2p_status_ = choice.rdma_filter;
    if (!p2p_status_.is_ok()) log_error("no P2P for rank ", rank(), ": ", p2p_status_.message());
    const std::string label = concat("rank ", rank(), " on ", host_name());
    if (options_.transfer_engine) return make_engine_transport(options_.transfer_engine, label);
    UcxOptions options;
    options.label = label;
    options.net_devices = choice.limit;
    return make_ucx_transport(options);
  };
  auto transport = make();
  if (!transport) {
    // Who never reads from another rank, nor is read by one, does not need it; a plan that does is
    // refused with this in the log.
    log_warning("no transport to and from other ranks: ", transport.status().message());
    return;
  }
  transport_ = std::move(*transport);
  if (!device_uuid.empty()) {
    const Status direct = transport_->can_read_into(DeviceKind::kCuda);
    log_info("rank ", rank(), " reads from other ranks ",
             direct.is_ok()
                 ? std::string("straight into GPU memory, where no other host goes on from it")
                 : concat("into pinned host memory: ", direct.message()));
  }
  signals_ = std::make_unique<ProgressSignals>(*transport_);
  signals_->hand_on(
      [leases = leases_.get()](const Transport::Sender& sender, std::span<const std::byte> signal) {
        leases->hear(sender, signal);
      });
}

JobMembership::~JobMembership() {
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

std::vector<int> JobMembership::all_ranks() const {
  std::vector<int> ranks(static_cast<std::size_t>(world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace ckpt
