#include "parameter_server/owner_fill.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/fd.h"
#include "parameter_server/published_pool.h"

namespace ckpt {
namespace {

/// A chunk between hosts takes as long on a link of 1 Gbit/s.
constexpr std::chrono::milliseconds kLookInterval{8};

}  // namespace

OwnerFill::OwnerFill(Transport& transport, std::vector<Door> doors, Progress filled,
                     std::function<void(const Status&)> on_lost)
    : transport_(transport),
      doors_(std::move(doors)),
      filled_(std::move(filled)),
      on_lost_(std::move(on_lost)) {}

Result<std::unique_ptr<OwnerFill>> OwnerFill::watch(Transport& transport, std::vector<Door> doors,
                                                    Deadline deadline, AbortSignal& abort,
                                                    std::function<void(const Status&)> on_lost,
                                                    std::chrono::milliseconds silence) {
  CKPT_ASSIGN_OR_RETURN(Progress filled,
                        Progress::create_private(static_cast<Progress::Slot>(doors.size())));
  std::unique_ptr<OwnerFill> fill(
      new OwnerFill(transport, std::move(doors), std::move(filled), std::move(on_lost)));
  fill->shown_ = fill->look(deadline.earlier(Deadline::after(silence)), abort);
  for (std::size_t i = 0; i < fill->doors_.size(); ++i) {
    const auto slot = static_cast<Progress::Slot>(i);
    if (!fill->shown_[i].is_ok()) fill->filled_.publish(slot, kWhollyFilled);
    fill->whole_.push_back(fill->filled_.value(slot) == kWhollyFilled);
  }
  if (!fill->all_whole()) fill->thread_ = std::thread([&owner = *fill] { owner.run(); });
  return fill;
}

OwnerFill::~OwnerFill() {
  stop_.raise(aborted("nothing more is read"));
  if (thread_.joinable()) thread_.join();
}

bool OwnerFill::all_whole() const {
  for (Progress::Slot i = 0; i < filled_.slots(); ++i) {
    if (filled_.value(i) != kWhollyFilled) return false;
  }
  return true;
}

std::vector<Status> OwnerFill::look(Deadline deadline, AbortSignal& abort) {
  std::vector<std::uint64_t> words(doors_.size(), 0);
  std::vector<std::unique_ptr<Read>> reads(doors_.size());  // end before what they write to
  for (std::size_t i = 0; i < doors_.size(); ++i) {
    if (filled_.value(static_cast<Progress::Slot>(i)) == kWhollyFilled) continue;
    const ReadRange range{doors_[i].region, offsetof(DoorWords, filled), &words[i],
                          sizeof(words[i])};
    reads[i] = transport_.read(*doors_[i].peer, {&range, 1}, deadline);
  }
  std::vector<Status> outcomes(doors_.size());
  for (std::size_t i = 0; i < doors_.size(); ++i) {
    if (!reads[i]) continue;
    outcomes[i] = reads[i]->wait(deadline, &abort);
    if (outcomes[i].is_ok()) filled_.publish(static_cast<Progress::Slot>(i), words[i]);
  }
  return outcomes;
}

void OwnerFill::run() {
  while (!all_whole()) {
    const auto stopped = wait_readable(stop_.fd(), Deadline::after(kLookInterval));
    if (!stopped || *stopped) return;
    const std::vector<Status> outcomes = look(Deadline::after(kOwnerSilence), stop_);
    const auto lost = std::ranges::find_if_not(outcomes, &Status::is_ok);
    if (lost == outcomes.end()) continue;
    if (!stop_.raised() && on_lost_) {
      on_lost_(lost->with_context("an owner that is being filled itself"));
    }
    return;
  }
}

}  // namespace ckpt
