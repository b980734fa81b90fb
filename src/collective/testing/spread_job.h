// A job whose updates have no workers: ranks as threads of this process (or, see OwnProcess, each
// in one of its own), each with a pool of random bytes, its lanes of filling and spreading as in an
// update, and in the place of its worker a reader that compares every byte with its source.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/testing/spread_backend.h"
#include "memory/host_pool.h"
#include "plan/test_topology.h"

namespace ckpt::testing {

struct PassOptions {
  double seconds = 60;  ///< until the deadline
  /// A lane that fails ends the pass on all ranks, as the hub of a job would.
  bool tell_everybody = true;
  /// The pass is aborted with this before it begins.
  Status aborted_before;
  /// Called by the reader of `rank` when it has compared `bucket`, before it acknowledges. False:
  /// this reader stops here, as a worker that hangs.
  std::function<bool(int rank, std::uint32_t bucket)> acknowledges;
  /// False: the owner `rank` stops before this chunk of its fill stream.
  std::function<bool(int rank, std::uint64_t sequence)> fills;
  /// How long memory is watched after the last lane has ended.
  std::chrono::milliseconds watch{10};
};

struct LaneOutcome {
  int rank;
  std::string lane;  ///< "fill", "read" or the name of a spread
  Status status;
  std::uint64_t bytes;
  std::chrono::steady_clock::time_point ended;

  bool spreads() const { return lane != "fill" && lane != "read"; }
};

struct PassOutcome {
  Status cause;                                   ///< the first failure
  std::chrono::steady_clock::time_point aborted;  ///< when everybody was told of it
  std::vector<LaneOutcome> lanes;
  /// Bytes that were written beside rings and stagings, or anywhere after the last lane had ended;
  /// empty when all is well.
  std::string stray_write;

  /// One line for each lane that failed.
  std::string text() const;
};

/// A job of which one rank is here; the others make the same job elsewhere, on this host.
struct OwnProcess {
  int rank;
  /// Returns when all ranks that live have called it, with what each of them gave, by rank.
  std::function<std::map<int, std::string>(const std::string& mine)> meet;
  std::uint32_t passes_before = 0;  ///< that the job has had when this process begins
};

class SpreadJob {
 public:
  /// Makes plan, pools, transports. `topology` is taken as it is, but for the sharing of rings.
  SpreadJob(const SpreadBackend& backend, Topology topology,
            std::optional<OwnProcess> own_process = {});
  ~SpreadJob();
  SpreadJob(const SpreadJob&) = delete;
  SpreadJob& operator=(const SpreadJob&) = delete;

  /// One pass over all tensors, with rings of its own.
  PassOutcome run(const PassOptions& options = {});
  /// Ends the pass under way on all ranks. Only from the callbacks of PassOptions.
  void abort(const Status& cause);

  /// A rank's transport dies; the pool stays.
  void kill(int rank);
  /// A new transport for it, as of a process that was started anew.
  void restart(int rank);

  const Plan& plan() const { return plan_; }
  const Schedule& schedule(int rank) const { return schedules_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& recipients() const { return recipients_; }
  Transport& transport(int rank) { return *owner(rank).transport; }
  FakeNetwork& network() { return network_; }
  /// Without the padding between tensors.
  std::uint64_t bytes_to_receive(int rank) const;

 private:
  struct Pass;
  /// What a rank has between passes.
  struct Owner {
    std::shared_ptr<Device> device;
    std::shared_ptr<Transport> transport;
    std::unique_ptr<ProgressSignals> signals;
    std::unique_ptr<HostPool> pool;
    std::vector<std::unique_ptr<MemoryRegion>> regions;
    std::vector<RemoteMemory::Piece> pieces;
    std::vector<std::byte> descriptor;
  };

  /// What a rank tells those who read from it in a pass.
  struct Published {
    std::string board;                  ///< name of the progress board that it has made; or empty
    std::vector<std::byte> key;         ///< of SpreadBackend::make_key; or empty
    BufferHandle staging;               ///< what ranks of its host pull from
    std::vector<std::byte> pool, ring;  ///< descriptors
    std::vector<RemoteMemory::Piece> pool_pieces;
    std::uint64_t ring_region = 0, ring_bytes = 0;

    std::string encode() const;
    static Published decode(const std::string& text);
  };

  bool is_here(int rank) const { return !own_process_ || own_process_->rank == rank; }
  std::vector<int> recipients_here() const;
  Status make_boards(Pass& pass);
  Status open_board(Pass& pass);
  Status open_stagings(Pass& pass);
  Status publish(Pass& pass);
  /// A barrier with those elsewhere.
  void meet_others();
  void make_contents();
  void make_pool(int rank);
  void join_network(int rank);
  Status prepare(Pass& pass);
  Status allocate(Pass& pass, int rank);
  std::unique_ptr<RankPass> make_rank(Pass& pass, int rank);
  Status connect(Pass& pass, RankPass& rank);
  void run_lanes(Pass& pass, const PassOptions& options, PassOutcome& outcome);
  Owner& owner(int rank) { return owners_[static_cast<std::size_t>(rank)]; }
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  bool per_rank() const { return backend_.sharing == RingSharing::kPerRank; }

  const SpreadBackend backend_;
  const bool over_hosts_;
  const std::vector<int> hosts_;  // by rank
  const Topology topology_;
  const std::optional<OwnProcess> own_process_;
  const std::shared_ptr<Device> host_ = make_host_device();
  FakeNetwork network_;
  Plan plan_;
  std::vector<Schedule> schedules_;  // by rank
  std::vector<int> recipients_;
  std::vector<std::vector<std::byte>> contents_;  // by tensor of the catalog
  std::vector<Owner> owners_;                     // by rank
  std::uint32_t passes_ = 0;
  std::function<void(const Status&)> abort_;  // while a pass runs
};

}  // namespace ckpt::testing
