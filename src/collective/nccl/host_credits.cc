#include "collective/nccl/host_credits.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt {

std::vector<int> credit_listeners(const std::vector<std::vector<int>>& hosts, int rank) {
  std::vector<int> listeners;
  std::size_t place = 0;  // on the rank's own host
  for (const std::vector<int>& host : hosts) {
    const auto at = std::ranges::find(host, rank);
    if (at != host.end()) place = static_cast<std::size_t>(at - host.begin());
  }
  for (const std::vector<int>& host : hosts) {
    if (!std::ranges::binary_search(host, rank)) listeners.push_back(host[place % host.size()]);
  }
  std::ranges::sort(listeners);
  return listeners;
}

Result<std::unique_ptr<HostCredits>> HostCredits::create(
    HostCreditsContext context, const std::map<int, std::vector<std::byte>>& listeners,
    Deadline deadline) {
  std::unique_ptr<HostCredits> made(new HostCredits(context));
  for (const auto& [rank, descriptor] : listeners) {
    if (descriptor.empty()) {
      return unavailable(concat("rank ", rank,
                                " has no transport, over which ranks of other hosts could tell it "
                                "how far they are; the log of its start says why"));
    }
    ConnectOptions options;
    options.label = concat("rank ", rank);
    CKPT_ASSIGN_OR_RETURN(auto peer,
                          context.transport.connect(descriptor, std::move(options), deadline));
    made->listeners_.push_back(std::move(peer));
  }
  context.signals.open(
      context.epoch, context.pass,
      [credits = made.get()](const ProgressSignal& signal) { credits->hear(signal); });
  return made;
}

HostCredits::~HostCredits() { context_.signals.close(context_.epoch, context_.pass); }

void HostCredits::hear(const ProgressSignal& signal) {
  const HostProgressLayout& layout = context_.layout;
  if (layout.is_local(signal.from) ||
      !std::ranges::binary_search(layout.spread_ranks(), signal.from)) {
    return;
  }
  if (signal.kind == ProgressSignal::Kind::kFilled) {
    context_.progress.publish(layout.stream(signal.from, StreamKind::kFill), signal.value);
  } else if (signal.kind == ProgressSignal::Kind::kAcknowledged) {
    context_.progress.publish(layout.acknowledged(signal.from), signal.value);
  }
}

Status HostCredits::tell_filled(Deadline deadline, AbortSignal& abort) {
  return tell(ProgressSignal::Kind::kFilled,
              context_.layout.stream(context_.rank, StreamKind::kFill),
              context_.schedule.fill.size(), deadline, abort);
}

Status HostCredits::tell_acknowledged(Deadline deadline, AbortSignal& abort) {
  return tell(ProgressSignal::Kind::kAcknowledged, context_.layout.acknowledged(context_.rank),
              context_.schedule.buckets.size(), deadline, abort);
}

Status HostCredits::lost_listener() const {
  for (const auto& listener : listeners_) CKPT_RETURN_IF_ERROR(listener->status());
  return Status();
}

Status HostCredits::tell(ProgressSignal::Kind kind, Progress::Slot slot, std::uint64_t total,
                         Deadline deadline, AbortSignal& abort) {
  for (std::uint64_t told = 0; told < total;) {
    const Status grown = context_.progress.wait(slot, told + 1, deadline, abort);
    if (!grown.is_ok()) {
      // Who is lost is the reason for a step that does not come.
      if (!abort.raised()) CKPT_RETURN_IF_ERROR(lost_listener());
      return grown.with_context(concat("what rank ", context_.rank, " has ",
                                       kind == ProgressSignal::Kind::kFilled ? "filled" : "loaded",
                                       ", as other hosts are told"));
    }
    told = context_.progress.value(slot);
    const ProgressSignalBytes signal =
        encode_progress_signal({kind, context_.epoch, context_.pass, context_.rank, told});
    for (const auto& listener : listeners_) {
      CKPT_RETURN_IF_ERROR(context_.transport.signal(*listener, signal));
    }
  }
  return Status();
}

}  // namespace ckpt
