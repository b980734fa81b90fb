// How far the owners of another job have come that are being filled themselves (OfferedCopy): a
// reader follows them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "collective/progress.h"
#include "transport/lease.h"
#include "transport/transport.h"

namespace ckpt {

/// Watches the second word of doors, on a thread of its own where some owner does not hold
/// everything yet. The doors' peers outlive it.
class OwnerFill {
 public:
  /// Reads all doors once, each for `silence` at most. `on_lost` is told, on the watching thread,
  /// when an owner that is still being filled does not show its door any more.
  static Result<std::unique_ptr<OwnerFill>> watch(
      Transport& transport, std::vector<Door> doors, Deadline deadline, AbortSignal& abort,
      std::function<void(const Status&)> on_lost,
      std::chrono::milliseconds silence = kOwnerSilence);
  ~OwnerFill();

  /// Bytes from the beginning of the pool behind doors[i], in slot i.
  const Progress& filled() const { return filled_; }
  /// ok, or why doors[i] was not shown at the beginning: it is not looked at again, and counts as
  /// one behind which everything is.
  const Status& shown(std::size_t i) const { return shown_[i]; }
  /// True when the owner behind doors[i] held everything at the beginning.
  bool was_whole(std::size_t i) const { return whole_[i]; }

 private:
  OwnerFill(Transport& transport, std::vector<Door> doors, Progress filled,
            std::function<void(const Status&)> on_lost);
  std::vector<Status> look(Deadline deadline, AbortSignal& abort);
  bool all_whole() const;
  void run();

  Transport& transport_;
  const std::vector<Door> doors_;
  Progress filled_;
  std::vector<Status> shown_;
  std::vector<bool> whole_;
  const std::function<void(const Status&)> on_lost_;
  AbortSignal stop_;
  std::thread thread_;
};

}  // namespace ckpt
