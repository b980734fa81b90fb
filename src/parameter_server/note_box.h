// Where the notes of other ranks wait for the update they belong to. Made before the update speaks
// to anybody, so that none comes too early.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "parameter_server/pass_messages.h"

namespace ckpt {

/// All methods from any thread.
class NoteBox {
 public:
  struct Entry {
    int from_rank;
    PassNote note;
  };

  void put(int from_rank, PassNote note) {
    {
      const std::lock_guard lock(mutex_);
      entries_.push_back({from_rank, std::move(note)});
    }
    event_.set();
  }
  std::deque<Entry> take() {
    event_.clear();
    const std::lock_guard lock(mutex_);
    return std::exchange(entries_, {});
  }
  /// Readable for poll(2) when there may be something to take.
  int fd() const { return event_.fd(); }

 private:
  EventFd event_;
  std::mutex mutex_;
  std::deque<Entry> entries_;
};

}  // namespace ckpt
