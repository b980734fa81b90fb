// The calls that several ranks make together: who has come, who is missing, what came out. Pure
// logic of the hub.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "control/messages.h"

namespace ckpt::control {

/// "barrier \"filled\" of ranks 0, 1, 2", for messages.
std::string describe_call(Call call, std::string_view tag);
/// "rank 3", "ranks 0, 1, 2": at most 16 of them, then a count.
std::string describe_ranks(const std::vector<int>& ranks);

/// A call that has ended, and for whom.
struct Completion {
  struct Waiter {
    int rank = 0;
    std::uint64_t request = 0;
  };
  std::vector<Waiter> waiters;
  Call call = Call::kBarrier;
  /// Ascending; payloads are in this order, only when the status is ok and the call gathers.
  std::vector<int> ranks;
  std::vector<Payload> payloads;
  Status status;
};
using Completions = std::vector<Completion>;

/// Calls are matched by (epoch, tag). A call that fails before all have come is remembered, so that
/// those who come late fail alike, until somebody who has been told tries again.
class CollectiveTable {
 public:
  Completions contribute(int rank, Contribute call, Payload payload);
  /// `rank` gives up: the rest of that call fails with `cause`, which the hub completes with who
  /// was missing.
  Completions withdraw(int rank, std::uint64_t request, const Status& cause);
  /// `rank` is gone: every call that needs it fails with `cause`.
  Completions remove_rank(int rank, const Status& cause);
  /// Every call of the update fails with `cause`; what is remembered of it is forgotten.
  Completions end_epoch(std::uint64_t epoch, const Status& cause);
  std::size_t open() const { return open_.size(); }

 private:
  using Key = std::pair<std::uint64_t, std::string>;
  struct Arrival {
    int rank = 0;
    std::uint64_t request = 0;
    Status vote;
    Payload payload;
  };
  struct Open {
    Call call = Call::kBarrier;
    std::vector<int> ranks;         // ascending
    std::vector<Arrival> arrivals;  // in order of arrival
    bool expects(int rank) const;
    bool has(int rank) const;
    std::vector<int> missing() const;
  };
  struct Failed {
    Status cause;
    std::vector<int> untold;  // ascending
  };

  static Completion complete(Open open, Status status);
  Completion fail(const Key& key, Open open, Status cause, std::vector<int> untold);

  std::map<Key, Open> open_;
  std::map<Key, Failed> failed_;
};

}  // namespace ckpt::control
