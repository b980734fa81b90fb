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
  /// The time that the device of each entry has been given so far, in device_costs.
  using Loads = std::vector<std::uint64_t>;

  struct Host {
    int host;
    std::uint32_t first, end;  ///< of its recipients, in entries_
  };

  std::uint32_t enter_locally(const Host& host, int owner, std::uint64_t steps);
  std::uint32_t enter_from_outside(const Host& host, bool last, std::uint64_t steps);
  std::uint32_t first_done(const Host& host, std::uint64_t steps, const Loads& loads) const;
  std::uint32_t least_copied(const Host& host) const;
  void send(std::uint32_t entry, std::uint64_t steps);

  std::span<const PlanRank> ranks_;
  std::vector<Host> hosts_;                  ///< that have recipients, ascending
  std::vector<std::uint32_t> first_host_;    ///< for each host: the first of hosts_ not before it
  std::vector<int> entries_;                 ///< ranks of all recipients, by host
  std::vector<std::int32_t> entry_of_rank_;  ///< -1: no recipient
  // By entry.
  std::vector<std::uint64_t> costs_;
  std::vector<std::uint32_t> devices_;  ///< of each entry
  Loads entered_;  ///< from other hosts: of several entries of a device, this one decides
  Loads local_;    ///< out of pools of its own host, its own included
  // By device: entries that share one share its load.
  Loads in_;       ///< from other hosts
  Loads out_;      ///< to other hosts
  Loads busiest_;  ///< of both, as a device carries them at once
};

}  // namespace ckpt
