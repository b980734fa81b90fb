// Hands the notes of other ranks to the update that they belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "parameter_server/note_box.h"

namespace ckpt {

/// All methods from any thread.
class NoteRouter {
 public:
  /// The box for the notes of `epoch`. Updates are over one after the other: what comes later for
  /// older ones is dropped.
  std::shared_ptr<NoteBox> open(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    epoch_ = epoch;
    box_ = std::make_shared<NoteBox>();
    return box_;
  }

  void deliver(int from_rank, std::uint64_t epoch, std::span<const std::byte> message) {
    auto note = decode_pass_note(message);
    if (!note) return;
    std::shared_ptr<NoteBox> box;
    {
      const std::lock_guard lock(mutex_);
      if (epoch == epoch_) box = box_;
    }
    if (box) box->put(from_rank, std::move(*note));
  }

 private:
  std::mutex mutex_;
  std::uint64_t epoch_ = 0;
  std::shared_ptr<NoteBox> box_;
};

}  // namespace ckpt
