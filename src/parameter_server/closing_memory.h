// Memory that its owner is done with and that others of the host may still have open: it is freed
// when the last of them that lives has closed it, and nobody waits for that.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Any thread.
class ClosingMemory {
 public:
  /// Who lives and has not closed memory by then never will: it is freed all the same, and the log
  /// says so.
  static constexpr std::chrono::seconds kPatience{60};

  ClosingMemory() = default;
  /// Waits for what is here.
  ~ClosingMemory();
  ClosingMemory(const ClosingMemory&) = delete;
  ClosingMemory& operator=(const ClosingMemory&) = delete;

  /// Drops `memory` when `in_use()` is false: at once, or in the background, at `deadline` at the
  /// latest. `in_use` is called by one thread at a time and dropped before `memory`. `what` is for
  /// the log.
  void free_when_closed(std::string what, std::shared_ptr<void> memory,
                        std::function<bool()> in_use,
                        Deadline deadline = Deadline::after(kPatience));
  bool empty() const;
  /// Returns when nothing is here any more: all of it has been freed then.
  Status wait(Deadline deadline, AbortSignal& abort);

 private:
  struct Closing {
    std::string what;
    std::shared_ptr<void> memory;
    std::function<bool()> in_use;
    Deadline deadline;
  };
  void watch();
  static bool is_over(Closing& closing);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Closing> closing_;
  bool ends_ = false;
  std::thread thread_;  // while there is something to watch
};

}  // namespace ckpt
