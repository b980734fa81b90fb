// Updates: their numbers, their ranks, and how they ended. Pure logic of the hub.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt::control {

/// An update that has just been aborted, and the ranks that must hear of it.
struct AbortNotice {
  std::uint64_t epoch = 0;
  Status cause;
  std::vector<int> ranks;
};

class EpochTable {
 public:
  /// The next number, for `ranks`.
  std::uint64_t begin(std::vector<int> ranks);
  /// `rank` has ended its part. True when it was the last one: the update is over.
  bool end(int rank, std::uint64_t epoch);
  /// Nobody is in the notice when the update is over or was aborted already: the first cause wins.
  AbortNotice abort(std::uint64_t epoch, const Status& cause);
  /// Aborts every update that `rank` has not ended. Updates that have nobody left are put into
  /// `over`.
  std::vector<AbortNotice> remove_rank(int rank, const Status& cause,
                                       std::vector<std::uint64_t>& over);
  /// Whether `rank` may still act in the update: ok, the cause of the abort, or that it is over
  /// there.
  Status check(int rank, std::uint64_t epoch) const;
  /// True while `rank` takes part and has not ended, aborted or not.
  bool has(int rank, std::uint64_t epoch) const;

 private:
  struct Epoch {
    std::vector<int> ranks;  // those that have not ended
    Status cause;
  };
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Epoch> epochs_;
};

}  // namespace ckpt::control
