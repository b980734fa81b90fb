// A job of state machines that obey a schedule, with real bytes and random delays: what the
// schedule promises, tried.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "plan/schedule.h"
#include "plan/test_topology.h"

namespace ckpt::testing {

class ScheduleSimulation {
 public:
  /// `topology` must live as long as this.
  ScheduleSimulation(const Topology& topology, const Plan& plan, std::uint64_t seed);

  /// Runs until every lane of every rank is done. The first broken promise as text (a deadlock,
  /// bytes that are wrong or were overwritten while they were read); empty when all went well.
  std::string run();

 private:
  enum class LaneKind { kFill, kReceive, kPull, kDeliver };
  /// One thing that a rank does, step by step; at most one step is under way.
  struct Lane {
    int rank;
    LaneKind kind;
    std::uint64_t steps;
    std::uint64_t done = 0;
    bool under_way = false;
    std::vector<std::uint8_t> read;  ///< what the source held when the step began
    std::uint64_t weight = 1;        ///< how often it gets its turn
  };
  using Bytes = std::vector<std::uint8_t>;

  void make_pools();
  void make_lanes();
  bool may_begin(const Lane& lane) const;
  void begin(Lane& lane);
  void end(Lane& lane);
  void fail(const Lane& lane, const std::string& what);
  std::string stuck() const;

  // Memory of one step: bytes to read, gathered, and where to write them (nullptr: nowhere).
  Bytes source(const Lane& lane) const;
  std::uint8_t* target(const Lane& lane);
  Bytes from_pool(const Chunk& chunk) const;
  Bytes delivered(const Bucket& bucket, int rank) const;
  std::uint64_t ring_offset(const Chunk& chunk) const;
  std::uint8_t* landing(int rank, StreamKind kind, std::uint64_t sequence, const Chunk& chunk);

  bool may_land(int rank, StreamKind kind, std::uint64_t sequence, const Chunk& chunk) const;
  bool ring_is_free(int ring, const Chunk& chunk) const;
  const Lane& lane(int rank, LaneKind kind) const;
  std::uint64_t pulled(int recipient, int rank, StreamKind kind) const;
  bool staged(int rank) const { return staged_ && !schedules_[rank].direct; }
  bool pulls(int rank) const { return per_rank_ && !schedules_[rank].direct; }
  int ring_of(int rank) const { return per_rank_ ? rank : topology_.ranks[rank].host; }

  const Topology& topology_;
  const Plan& plan_;
  const bool per_rank_;
  const bool staged_;
  std::mt19937_64 random_;
  std::vector<Schedule> schedules_;
  std::vector<Bytes> pools_;                       ///< by rank
  std::vector<Bytes> rings_;                       ///< by host or rank
  std::vector<std::vector<Bytes>> staging_;        ///< by rank and StreamKind: slots
  std::vector<Lane> lanes_;                        ///< four for each rank
  std::vector<std::vector<std::uint64_t>> taken_;  ///< chunks, by taker and source
  /// Chunks pulled, by recipient, rank of the same host and StreamKind.
  std::vector<std::vector<std::uint64_t>> pulled_;
  std::string failure_;
};

}  // namespace ckpt::testing
