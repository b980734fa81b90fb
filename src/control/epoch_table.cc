#include "control/epoch_table.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace ckpt::control {

std::uint64_t EpochTable::begin(std::vector<int> ranks) {
  epochs_.emplace(++last_, Epoch{std::move(ranks), Status::ok()});
  return last_;
}

bool EpochTable::end(int rank, std::uint64_t epoch) {
  const auto found = epochs_.find(epoch);
  if (found == epochs_.end() || std::erase(found->second.ranks, rank) == 0) return false;
  if (!found->second.ranks.empty()) return false;
  epochs_.erase(found);
  return true;
}

AbortNotice EpochTable::abort(std::uint64_t epoch, const Status& cause) {
  const auto found = epochs_.find(epoch);
  if (found == epochs_.end() || !found->second.cause.is_ok()) return {epoch, cause, {}};
  found->second.cause = cause;
  return {epoch, cause, found->second.ranks};
}

std::vector<AbortNotice> EpochTable::remove_rank(int rank, const Status& cause,
                                                 std::vector<std::uint64_t>& over) {
  std::vector<AbortNotice> notices;
  for (auto& [number, epoch] : epochs_) {
    if (std::erase(epoch.ranks, rank) == 0) continue;
    if (epoch.ranks.empty()) {
      over.push_back(number);
    } else if (epoch.cause.is_ok()) {
      epoch.cause = cause;
      notices.push_back({number, cause, epoch.ranks});
    }
  }
  for (const std::uint64_t number : over) epochs_.erase(number);
  return notices;
}

Status EpochTable::check(int rank, std::uint64_t epoch) const {
  const auto found = epochs_.find(epoch);
  if (found == epochs_.end() || !has(rank, epoch)) {
    return aborted(
        concat("update ", epoch, " is over on rank ", rank, ", or it never began there"));
  }
  return found->second.cause;
}

bool EpochTable::has(int rank, std::uint64_t epoch) const {
  const auto found = epochs_.find(epoch);
  return found != epochs_.end() && std::ranges::count(found->second.ranks, rank) > 0;
}

}  // namespace ckpt::control
