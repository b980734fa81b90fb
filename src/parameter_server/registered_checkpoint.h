// What one rank holds of one checkpoint: the pool, the layout and digests of what lies in it, and
// its readers' way to it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/metas.h"
#include "checkpoint_engine/parameter_server.h"
#include "memory/host_pool.h"
#include "memory/pool_reclaimer.h"
#include "memory/shared_pool.h"
#include "parameter_server/published_pool.h"
#include "transport/lease.h"
#include "transport/transport.h"

namespace ckpt {

/// What a registration needs of its server. The referred objects outlive the checkpoint.
struct RegistrationContext {
  Device& device;
  Transport* transport;  ///< null: nobody else can read the pool
  LeaseTable& leases;
  SharedPool& shared_pool;
  PoolReclaimer& reclaimer;
  int rank;
  std::uint64_t epoch;  ///< of this registration
  std::string host_id;
  NetworkPlace network;
  int threads;
  double timeout_seconds;
  double reader_patience_seconds;  ///< how long readers of other jobs are waited for at the end

  /// Who and where the owner is, and of which registration; nothing of what it holds.
  InstanceData place() const;
  /// For a pool whose memory the device copies from.
  HostPoolOptions near_device() const;
};

class RegisteredCheckpoint {
 public:
  /// Reads, copies and digests everything. On error nothing is left behind. `abort` ends it.
  static Result<std::unique_ptr<RegisteredCheckpoint>> create(const std::string& name,
                                                              const Registration& part,
                                                              const RegistrationContext& context,
                                                              AbortSignal* abort = nullptr);
  /// Takes no more readers of other jobs, waits for those that hold a lease, and ends their reads
  /// when its patience is over. The
  /// memory goes back by the reclaimer.
  ~RegisteredCheckpoint();

  const HostPool& pool() const { return *pool_; }
  const std::shared_ptr<const Layout>& layout() const { return layout_; }
  bool uses_shared_pool() const { return uses_shared_pool_; }
  /// With the transport descriptor as it is now.
  Result<InstanceData> instance_data() const;
  /// Removes the names of the files that are used in place, where the registration asked for that:
  /// once no rank needs them any more. Again is fine.
  void remove_files();

 private:
  RegisteredCheckpoint(const std::string& name, const RegistrationContext& context)
      : name_(name), context_(context) {}
  struct Source;
  static Result<std::vector<Source>> sources_in_plan_order(const Registration& part);
  Status place(const Registration& part, std::vector<Source>& sources);
  Status take_shared_pool(std::uint64_t bytes);
  Status make_own_pool(std::uint64_t bytes, bool with_files);
  Status load(const std::vector<Source>& sources, AbortSignal* abort);
  Status publish();

  const std::string name_;
  const RegistrationContext context_;
  std::unique_ptr<HostPool> own_pool_;
  HostPool* pool_ = nullptr;  // own_pool_, or the shared pool while we use it
  bool uses_shared_pool_ = false;
  bool removes_files_ = false;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t> digests_;
  std::unique_ptr<PublishedPool> published_;  // null: nobody else can read it
};

}  // namespace ckpt
