// Who has joined, who is lost, who never came. Pure logic of the hub.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/messages.h"
#include "control/route.h"

namespace ckpt::control {

using TimePoint = std::chrono::steady_clock::time_point;

struct Member {
  int rank = 0;
  std::string host_id;
  std::string host_name;
  std::uint32_t process = 0;
  std::string session;
  Route control;
  Route bulk;  ///< empty until the second connection has come
  TimePoint joined;
  TimePoint last_heard;
  /// Until the job is complete: how long the rank waits for the next one that joins.
  std::chrono::milliseconds patience{0};
  std::map<std::uint64_t, std::string> channels;  ///< epoch -> address

  /// "rank 3 (host n7, process 4711)".
  std::string describe() const;
};

/// What a joining rank must agree with. Unset: the first rank decides.
struct JobTerms {
  std::optional<std::string> job;
  std::optional<int> world_size;
  std::string secret;
};

/// Equal, in a time that depends on the lengths only.
bool same_secret(std::string_view a, std::string_view b);

class Membership {
 public:
  explicit Membership(JobTerms terms) : terms_(std::move(terms)) {}

  /// Makes the rank a member, or says why not. The message is complete: it goes to the rank as it
  /// is.
  Status admit(const Join& join, const Route& route, std::string session, TimePoint now);
  /// Gives a member its second connection; false when there is no such session.
  bool attach(const std::string& session, const Route& route);
  /// `why` is what later calls over the rank are told. Returns the member as it was.
  Member remove(int rank, Status why);

  Member* find(int rank);
  /// The member on either of its connections.
  Member* find(const Route& route);
  const std::map<int, Member>& members() const { return members_; }
  std::map<int, Member>& members() { return members_; }
  int world_size() const { return terms_.world_size.value_or(0); }

  /// True once all ranks have been members at the same time.
  bool complete() const { return complete_; }
  /// Ranks that are no members.
  std::vector<int> missing() const;
  /// While the job is not complete: when `member` gives up waiting for it. Every rank that comes
  /// for the first time starts the patience anew; one that comes back has its own, and gives the
  /// others none.
  TimePoint gives_up(const Member& member) const {
    return std::max(member.joined, last_newcomer_) + member.patience;
  }
  /// Whether anybody has ever joined.
  bool used() const { return used_; }
  /// Ok, or why a call over `ranks` by `self` cannot work.
  Status check_ranks(const std::vector<int>& ranks, int self) const;

 private:
  Status check_terms(const Join& join) const;

  JobTerms terms_;
  bool complete_ = false;
  bool used_ = false;
  TimePoint last_newcomer_{};
  std::map<int, Member> members_;
  std::map<Route, int> routes_;
  std::map<int, Status> gone_;  // why
};

}  // namespace ckpt::control
