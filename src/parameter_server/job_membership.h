// This rank's life in a job: its seat at the hub (which rank 0 runs), who else is on its host, and
// its way to the memory of the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/metas.h"
#include "checkpoint_engine/parameter_server.h"
#include "collective/progress_signal.h"
#include "control/control_client.h"
#include "control/hub.h"
#include "control/rendezvous.h"
#include "transport/lease.h"
#include "transport/transport.h"

namespace ckpt {

class JobMembership {
 public:
  using MessageHandler =
      std::function<void(int from_rank, std::uint64_t epoch, std::span<const std::byte> message)>;

  /// Collective over the job; returns when all ranks have joined. `on_message` is called on the
  /// control thread, until the membership has ended. `abort` ends the wait.
  static Result<std::unique_ptr<JobMembership>> join(const ParameterServerOptions& options,
                                                     MessageHandler on_message,
                                                     AbortSignal* abort = nullptr);
  /// Leaves. Where this rank runs the hub, waits until the others have left too, at most
  /// hub_linger_seconds.
  ~JobMembership();
  JobMembership(const JobMembership&) = delete;
  JobMembership& operator=(const JobMembership&) = delete;

  ControlClient& control() const { return *control_; }
  int rank() const { return control_->rank(); }
  int world_size() const { return control_->world_size(); }
  /// 0 to world_size - 1.
  std::vector<int> all_ranks() const;
  const std::string& host_id() const { return host_id_; }
  int local_rank() const { return local_rank_; }
  int ranks_on_host() const { return ranks_on_host_; }
  /// Once, when this rank's device is known (its uuid, or empty). Without a transport this rank can
  /// still serve its own host: the log says why there is none.
  void start_transport(const std::string& device_uuid);
  /// Null: this rank has none.
  Transport* transport() const { return transport_.get(); }
  /// Not ok: this rank must not be filled from single owners, as P2P does: the user wanted RDMA
  /// devices for it that are not there. What all ranks do together goes on over the transport.
  const Status& p2p_status() const { return p2p_status_; }
  /// Null exactly when transport() is.
  ProgressSignals* signals() const { return signals_.get(); }
  /// Where others find this rank.
  const NetworkPlace& network() const { return network_; }
  /// Those that other jobs hold on this rank's memory.
  LeaseTable& leases() const { return *leases_; }

 private:
  explicit JobMembership(const ParameterServerOptions& options);
  Status take_seat(const Rendezvous& rendezvous, MessageHandler on_message, AbortSignal* abort);
  Status learn_hosts(const Rendezvous& rendezvous, AbortSignal* abort);

  const ParameterServerOptions options_;
  const std::string host_id_;
  std::string master_host_;
  NetworkPlace network_;
  Status p2p_status_;
  int local_rank_ = 0;
  int ranks_on_host_ = 1;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<ControlClient> control_;
  const std::unique_ptr<LeaseTable> leases_ = std::make_unique<LeaseTable>();
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ProgressSignals> signals_;
};

}  // namespace ckpt
