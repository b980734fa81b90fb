#include "control/membership.h"

#include <algorithm>

#include "base/strings.h"
#include "control/collective_table.h"

namespace ckpt::control {
namespace {

constexpr int kMaxWorldSize = 1 << 16;

}  // namespace

bool same_secret(std::string_view a, std::string_view b) {
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && !b.empty(); ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  }
  return difference == 0;
}

std::string Member::describe() const {
  return concat("rank ", rank, " (host ", host_name.empty() ? host_id : host_name, ", process ",
                process, ")");
}

Status Membership::check_terms(const Join& join) const {
  if (join.protocol != kProtocolVersion) {
    return protocol_error(concat("rank ", join.rank, " speaks version ", join.protocol,
                                 " of the control protocol, the hub version ", kProtocolVersion,
                                 ": run the same checkpoint-engine on all ranks"));
  }
  if (!same_secret(join.secret, terms_.secret)) {
    return failed_precondition(concat("rank ", join.rank,
                                      " presents another secret than the hub's: give all ranks of "
                                      "the job the same one"));
  }
  if (terms_.job && join.job != *terms_.job) {
    return failed_precondition(concat("rank ", join.rank, " is of job ", quoted(join.job),
                                      ", the hub serves job ", quoted(*terms_.job),
                                      ": check the rendezvous address and the job id"));
  }
  if (terms_.world_size && join.world_size != *terms_.world_size) {
    return failed_precondition(concat("rank ", join.rank, " expects ", join.world_size,
                                      " ranks, the job has ", *terms_.world_size,
                                      ": start all ranks with the same world size"));
  }
  if (join.world_size < 1 || join.world_size > kMaxWorldSize || join.rank < 0 ||
      join.rank >= join.world_size) {
    return invalid_argument(concat("rank ", join.rank, " of ", join.world_size,
                                   " ranks cannot be: ranks count from 0, at most ", kMaxWorldSize,
                                   " of them"));
  }
  return Status::ok();
}

Status Membership::admit(const Join& join, const Route& route, std::string session, TimePoint now) {
  CKPT_RETURN_IF_ERROR(check_terms(join));
  if (const Member* holder = find(join.rank)) {
    return already_exists(concat(holder->describe(),
                                 " has joined already and is alive: give every process its own "
                                 "rank, or end that process first"));
  }
  if (find(route) != nullptr) {
    return protocol_error(concat("rank ", join.rank, " joins on a connection of another rank"));
  }
  terms_.job = join.job;
  terms_.world_size = join.world_size;
  const auto patience = std::chrono::milliseconds(
      std::min<std::uint64_t>(join.patience_ms, 1000ULL * 3600 * 24 * 365));
  members_[join.rank] = Member{
      join.rank, join.host_id, join.host_name, join.process, std::move(session), route, Route(),
      now,       now,          patience};
  routes_[route] = join.rank;
  if (gone_.erase(join.rank) == 0) last_newcomer_ = now;
  used_ = true;
  complete_ = complete_ || static_cast<int>(members_.size()) == world_size();
  return Status::ok();
}

bool Membership::attach(const std::string& session, const Route& route) {
  for (auto& [rank, member] : members_) {
    if (!same_secret(member.session, session)) continue;
    if (!member.bulk.empty() || find(route) != nullptr) return false;
    member.bulk = route;
    routes_[route] = rank;
    return true;
  }
  return false;
}

Member Membership::remove(int rank, Status why) {
  Member member = std::move(members_.extract(rank).mapped());
  routes_.erase(member.control);
  if (!member.bulk.empty()) routes_.erase(member.bulk);
  gone_.insert_or_assign(rank, std::move(why));
  return member;
}

Member* Membership::find(int rank) {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

Member* Membership::find(const Route& route) {
  const auto found = routes_.find(route);
  return found == routes_.end() ? nullptr : find(found->second);
}

std::vector<int> Membership::missing() const {
  std::vector<int> out;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!members_.contains(rank)) out.push_back(rank);
  }
  return out;
}

Status Membership::check_ranks(const std::vector<int>& ranks, int self) const {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  if (!std::ranges::binary_search(sorted, self)) {
    return invalid_argument(concat("rank ", self, " calls over ", describe_ranks(sorted),
                                   " without being one of them"));
  }
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    return invalid_argument(concat("a call over ", describe_ranks(sorted), " names a rank twice"));
  }
  if (sorted.front() < 0 || sorted.back() >= world_size()) {
    return invalid_argument(concat("a call over ", describe_ranks(sorted),
                                   " names a rank outside the job of ", world_size()));
  }
  for (const int rank : sorted) {
    if (members_.contains(rank)) continue;
    const auto gone = gone_.find(rank);
    if (gone != gone_.end()) return gone->second;
    return peer_lost(concat("rank ", rank, " has not joined")).on_rank(rank);
  }
  return Status::ok();
}

}  // namespace ckpt::control
