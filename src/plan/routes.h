// Routes: through which ranks a part enters the hosts that need it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace ckpt {

/// Chooses the stops of parts, one part after the other: hosts in ring order beginning with the
/// owner's own, so that the chains of different owners share all links evenly; on each host the
/// recipient whose device is the least busy so far.
class Routes {
 public:
  explicit Routes(std::span<const PlanRank> ranks);

  std::size_t host_count() const { return hosts_.size(); }
  /// Appends one stop for every host with recipients.
  void append(int owner, std::uint64_t bytes, std::vector<Stop>& stops);

 private:
  /// A recipient, with the time that its device has been given so far (in device_costs).
  struct Entry {
    int rank;
    std::uint64_t cost;
    std::uint64_t in = 0;     ///< from other hosts
    std::uint64_t out = 0;    ///< to other hosts
    std::uint64_t local = 0;  ///< out of pools of its own host, its own included
  };
  struct Host {
    int host;
    std::uint32_t first, end;  ///< in entries_
  };

  Entry& enter_locally(const Host& host, int owner, std::uint64_t steps);
  Entry& enter_from_outside(const Host& host, bool last, std::uint64_t steps);

  std::span<const PlanRank> ranks_;
  std::vector<Entry> entries_;               ///< by host, ascending
  std::vector<Host> hosts_;                  ///< that have recipients, ascending
  std::vector<std::uint32_t> first_host_;    ///< for each host: the first of hosts_ not before it
  std::vector<std::int32_t> entry_of_rank_;  ///< -1: no recipient
  std::vector<std::uint64_t> costs_;
};

}  // namespace ckpt
