#include "control/collective_table.h"

#include <algorithm>
#include <iterator>

#include "base/strings.h"

namespace ckpt::control {
namespace {

constexpr std::size_t kMaxListedRanks = 16;

std::string_view call_name(Call call) {
  switch (call) {
    case Call::kAllGather:
      return "all-gather";
    case Call::kBarrier:
      return "barrier";
    case Call::kVote:
      return "vote";
    case Call::kBeginUpdate:
      return "begin of an update";
  }
  return "call";
}

std::vector<int> merged(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> out;
  std::ranges::set_union(a, b, std::back_inserter(out));
  return out;
}

}  // namespace

std::string describe_call(Call call, std::string_view tag) {
  return concat(call_name(call), " ", quoted(tag));
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMaxListedRanks; ++i) {
    out += concat(i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kMaxListedRanks) {
    out += concat(" and ", ranks.size() - kMaxListedRanks, " more");
  }
  return out;
}

bool CollectiveTable::Open::expects(int rank) const {
  return std::ranges::binary_search(ranks, rank);
}

bool CollectiveTable::Open::has(int rank) const {
  return std::ranges::any_of(arrivals, [rank](const Arrival& a) { return a.rank == rank; });
}

std::vector<int> CollectiveTable::Open::missing() const {
  std::vector<int> out;
  std::ranges::copy_if(ranks, std::back_inserter(out), [this](int rank) { return !has(rank); });
  return out;
}

Completion CollectiveTable::complete(Open open, Status status) {
  Completion completion{{}, open.call, std::move(open.ranks), {}, std::move(status)};
  for (const Arrival& arrival : open.arrivals) {
    completion.waiters.push_back({arrival.rank, arrival.request});
    if (completion.status.is_ok() && !arrival.vote.is_ok()) {
      completion.status = arrival.vote.on_rank(arrival.rank);
    }
  }
  if (open.call == Call::kAllGather && completion.status.is_ok()) {
    std::ranges::sort(open.arrivals, {}, &Arrival::rank);
    for (Arrival& arrival : open.arrivals) {
      completion.payloads.push_back(std::move(arrival.payload));
    }
  }
  return completion;
}

Completion CollectiveTable::fail(const Key& key, Open open, Status cause, std::vector<int> untold) {
  if (!untold.empty()) failed_.insert_or_assign(key, Failed{cause, std::move(untold)});
  open_.erase(key);
  return complete(std::move(open), std::move(cause));
}

Completions CollectiveTable::contribute(int rank, Contribute call, Payload payload) {
  const Key key(call.epoch, call.tag);
  const Arrival arrival{rank, call.request, call.vote, std::move(payload)};
  std::ranges::sort(call.ranks);

  if (const auto failed = failed_.find(key); failed != failed_.end()) {
    const Status cause = failed->second.cause;
    const bool untold = std::erase(failed->second.untold, rank) > 0;
    if (!untold || failed->second.untold.empty()) failed_.erase(failed);
    if (untold) return {complete(Open{call.call, call.ranks, {arrival}}, cause)};
  }

  Open& open = open_[key];
  if (open.arrivals.empty()) {
    open.call = call.call;
    open.ranks = call.ranks;
  }
  if (open.call != call.call || open.ranks != call.ranks) {
    const Status cause = invalid_argument(
        concat("rank ", rank, " calls ", describe_call(call.call, call.tag), " over ",
               describe_ranks(call.ranks), ", but rank ", open.arrivals.front().rank, " calls ",
               describe_call(open.call, call.tag), " over ", describe_ranks(open.ranks),
               ": all ranks must agree on the call and its ranks"));
    std::vector<int> untold = merged(open.missing(), call.ranks);
    std::erase_if(untold, [&](int other) { return other == rank || open.has(other); });
    Open all = open;
    all.arrivals.push_back(arrival);
    return {fail(key, std::move(all), cause, std::move(untold))};
  }
  if (open.has(rank)) {
    return {complete(Open{call.call, call.ranks, {arrival}},
                     failed_precondition(concat("rank ", rank, " is already waiting in ",
                                                describe_call(call.call, call.tag),
                                                ": calls at the same time need different tags")))};
  }
  open.arrivals.push_back(arrival);
  if (open.arrivals.size() < open.ranks.size()) return {};
  Open all = std::move(open);
  open_.erase(key);
  return {complete(std::move(all), Status::ok())};
}

Completions CollectiveTable::withdraw(int rank, std::uint64_t request, const Status& cause) {
  for (auto& [key, open] : open_) {
    const auto mine = std::ranges::find_if(open.arrivals, [&](const Arrival& arrival) {
      return arrival.rank == rank && arrival.request == request;
    });
    if (mine == open.arrivals.end()) continue;
    std::vector<int> missing = open.missing();
    const std::string context = concat(describe_call(open.call, key.second), ": ",
                                       describe_ranks(missing), " had not come");
    const Status own(cause.code(), concat(context, ": ", cause.message()));
    // That time is up is the cause on all ranks, whichever was the first to see it.
    const bool late = cause.code() == StatusCode::kDeadlineExceeded;
    const Status others =
        Status(late ? cause.code() : StatusCode::kAborted,
               concat(context, " when rank ", rank, " gave up: ", cause.message()))
            .on_rank(rank);
    Completion to_me = complete(Open{open.call, open.ranks, {*mine}}, own);
    open.arrivals.erase(mine);
    const Key failed_key = key;
    Open rest = std::move(open);
    return {std::move(to_me), fail(failed_key, std::move(rest), others, std::move(missing))};
  }
  return {};
}

Completions CollectiveTable::remove_rank(int rank, const Status& cause) {
  Completions out;
  std::vector<Key> broken;
  for (const auto& [key, open] : open_) {
    if (open.expects(rank)) broken.push_back(key);
  }
  for (const Key& key : broken) {
    Open open = std::move(open_.at(key));
    std::erase_if(open.arrivals, [rank](const Arrival& a) { return a.rank == rank; });
    const Status why = cause.with_context(describe_call(open.call, key.second));
    // Nobody needs to be remembered: a later call over a rank that is gone fails by itself.
    out.push_back(fail(key, std::move(open), why, {}));
  }
  for (auto entry = failed_.begin(); entry != failed_.end();) {
    std::erase(entry->second.untold, rank);
    entry = entry->second.untold.empty() ? failed_.erase(entry) : std::next(entry);
  }
  return out;
}

Completions CollectiveTable::end_epoch(std::uint64_t epoch, const Status& cause) {
  Completions out;
  std::erase_if(failed_, [epoch](const auto& entry) { return entry.first.first == epoch; });
  std::vector<Key> ended;
  for (const auto& [key, open] : open_) {
    if (key.first == epoch) ended.push_back(key);
  }
  for (const Key& key : ended) {
    Open open = std::move(open_.at(key));
    out.push_back(fail(key, std::move(open), cause, {}));
  }
  return out;
}

}  // namespace ckpt::control
