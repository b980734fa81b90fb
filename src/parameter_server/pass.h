// One pass of an update: every recipient's worker receives the whole checkpoint once. Usually an
// update has one pass.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "parameter_server/deliver_lane.h"
#include "parameter_server/pass_buffers.h"
#include "parameter_server/pass_lanes.h"
#include "parameter_server/pass_setup.h"
#include "parameter_server/planned_pass.h"
#include "worker/channel.h"

namespace ckpt {

/// All methods on one thread. The destructor ends the lanes (raise the abort signal first, unless
/// run() has returned ok).
class Pass {
 public:
  /// Collective over `recipients` (ascending, this rank among them): agrees on sizes, plans,
  /// allocates, opens, and starts to fill. `address`: where this rank waits for its worker.
  /// `cached` is used if it fits and replaced if not.
  static Result<std::unique_ptr<Pass>> prepare(const PassSetup& setup, std::uint32_t number,
                                               std::vector<int> recipients, std::string address,
                                               std::shared_ptr<const CachedPlan>& cached);
  ~Pass();

  /// What engines are given: one entry for each rank of the job, empty for those that are no
  /// recipients. A worker's key is its GPU's uuid, or on the host "CPU-<its place in its
  /// instance>".
  std::vector<WorkerAddress> worker_addresses(const std::vector<std::vector<int>>& instances) const;
  const std::vector<int>& recipients() const { return recipients_; }

  struct Callbacks {
    std::function<void()> first_bucket;
    std::function<void(std::uint64_t loaded, std::uint64_t total)> progress;
  };
  /// Collective: delivers everything through `channel`, whose worker has connected as `hello`, and
  /// ends the pass on all ranks alike. Adds to `report`.
  Status run(WorkerChannel& channel, const WorkerHello& hello, const Callbacks& callbacks,
             UpdateReport& report);

  /// The ring, for as long as a worker that was told to stop may still read it.
  std::shared_ptr<void> keep_alive() const { return buffers_; }

 private:
  Pass(const PassSetup& setup, std::uint32_t number, PlannedPass planned);
  Status allocate_and_open(std::string address);
  Status gather_ready(const char* step, const PassReady& mine);
  Status register_for_other_hosts(PassReady& mine);
  Status make_communicator();
  Status start_lanes();
  std::optional<PassMemory> kept_from_before();
  void free_or_keep_buffers();
  void close_when_open_everywhere();
  OpenedPass opened() const;  // once the buffers are allocated

  const PassSetup& setup_;
  const std::uint32_t number_;
  const std::vector<int> recipients_;
  const std::vector<PassOffer> offers_;  // one for each recipient
  std::vector<PassReady> ready_;         // one for each recipient
  const std::vector<int> local_recipients_, spread_recipients_;
  const std::shared_ptr<const CachedPlan> plan_;
  const bool needs_communicator_, keeps_buffers_, reuses_buffers_;
  std::shared_ptr<PassBuffers> buffers_;
  std::unique_ptr<MemoryRegion> ring_region_;  // or of the staging that other hosts read
  bool closed_to_others_ = false;
  std::unique_ptr<CopyStream> checks_;  // the deliver lane's
  std::unique_ptr<PassLanes> lanes_;
  std::vector<StageReport> prepare_stages_;
};

}  // namespace ckpt
