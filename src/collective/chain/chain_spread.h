// `cross` over a transport: a chunked chain of one-sided reads. The first stop reads the owner's
// pool, every further stop reads the ring of the stop before it, so that each host's links carry
// every byte once, whatever the number of hosts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "collective/host_progress.h"
#include "collective/progress_signal.h"
#include "collective/spread.h"
#include "plan/schedule.h"
#include "transport/transport.h"

namespace ckpt {

/// Memory of another rank that this one reads. Pool memory lies in several regions, in the order of
/// pool offsets; a ring or staging is one region.
struct RemoteMemory {
  struct Piece {
    std::uint64_t offset;  ///< first pool offset (or 0, for a ring)
    std::uint64_t bytes;
    std::uint64_t region;
  };
  Peer* peer = nullptr;
  std::vector<Piece> pieces;  ///< ascending, without overlap
  /// Staging of a stop: chunk i of its receive stream in slot i modulo `slots`. No slots: a pool or
  /// a ring.
  std::uint64_t slot_bytes = 0;
  std::uint64_t slots = 0;
  /// The pool of an owner that is being filled itself: bytes from its beginning that are there
  /// already. Null: all are.
  const Progress* filled = nullptr;
  Progress::Slot filled_slot = 0;
};

/// Where received chunks go.
struct ReceiveTarget {
  std::byte* ring = nullptr;     ///< at their place: PartPlace::ring_offset counts from here
  std::byte* staging = nullptr;  ///< or chunk i in slot i modulo `slots`
  std::uint64_t slot_bytes = 0;
  std::uint64_t slots = 0;
  /// With staging: the ranks that must have pulled a chunk before its slot is used again.
  std::vector<int> pullers;
};

/// Everything a pass gives to its chain. The referred objects outlive it.
struct ChainContext {
  Transport& transport;
  ProgressSignals& signals;
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  const RingCredits& space;
  std::uint64_t epoch;
  std::uint32_t pass;
  int rank;
  ReceiveTarget target;
  std::map<int, RemoteMemory> pools;  ///< of the owners that this rank reads
  std::map<int, RemoteMemory> rings;  ///< or stagings, of the stops before and behind this rank
};

class ChainSpread : public Spread {
 public:
  /// Listens to the signals of the pass from now on: make it before the barrier that starts the
  /// pass.
  static Result<std::unique_ptr<ChainSpread>> create(ChainContext context);
  ~ChainSpread() override;

  std::string_view name() const override { return "chain"; }
  Status run(Deadline deadline, AbortSignal& abort) override;
  std::uint64_t bytes() const override { return bytes_.load(std::memory_order_relaxed); }

 private:
  enum class ChunkState : std::uint8_t { kWaiting, kInFlight, kArrived };
  struct InFlight {
    std::size_t sequence;
    std::unique_ptr<Read> read;
  };

  ChainSpread(ChainContext context, Progress upstream);
  void hear(const ProgressSignal& signal);
  bool has_room(std::size_t sequence) const;
  Status wait_for_room(std::size_t sequence, Deadline deadline, AbortSignal& abort) const;
  bool can_start(std::size_t sequence) const;
  Status wait_until_startable(std::size_t sequence, Deadline deadline, AbortSignal& abort) const;
  Status start(std::size_t sequence, Deadline deadline);
  std::size_t find_startable() const;
  Status finish_oldest(Deadline deadline, AbortSignal& abort);
  Status report(const IncomingChunk& incoming);
  Progress::Slot upstream_slot(int rank) const;
  const RemoteMemory* filling_pool(const IncomingChunk& incoming) const;
  std::uint64_t end_in_pool(const IncomingChunk& incoming) const;
  std::string describe(const IncomingChunk& incoming) const;

  ChainContext context_;
  // What the stops before us have reported of their receive streams: a slot for each.
  std::vector<int> upstream_ranks_;
  Progress upstream_;
  // For each chunk of the receive stream: how many of it and those before it go to its next stop.
  std::vector<std::uint64_t> forwarded_with_;
  std::map<int, std::uint64_t> taken_;  // chunks that we have taken from each upstream's ring
  std::vector<ChunkState> states_;      // of each chunk of the receive stream
  std::size_t arrived_ = 0;             // chunks from the beginning of the stream
  std::deque<InFlight> in_flight_;      // in the order of their starts
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace ckpt
