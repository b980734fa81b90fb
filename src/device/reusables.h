// Things that are costly to make and as good as new after each use: streams, tables, threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// Lends each thing to one user after the other, and destroys those that are here in the end. What
/// may not be as good as new is not given back: whoever has it destroys it. Any thread.
template <typename Thing>
class Reusables {
 public:
  /// The smallest of those here that `fits(thing)`, by `size(thing)`; else what `make()`, a
  /// Result<std::unique_ptr<Thing>>, makes.
  template <typename Fits, typename Size, typename Make>
  Result<std::unique_ptr<Thing>> take(Fits fits, Size size, Make make) {
    {
      const std::lock_guard lock(mutex_);
      auto best = here_.end();
      for (auto it = here_.begin(); it != here_.end(); ++it) {
        if (fits(**it) && (best == here_.end() || size(**it) < size(**best))) best = it;
      }
      if (best != here_.end()) {
        std::unique_ptr<Thing> thing = std::move(*best);
        here_.erase(best);
        return thing;
      }
      ++made_;
    }
    return make();
  }
  template <typename Make>
  Result<std::unique_ptr<Thing>> take(Make make) {
    return take([](const Thing&) { return true; }, [](const Thing&) { return 0; }, make);
  }

  void give_back(std::unique_ptr<Thing> thing) {
    const std::lock_guard lock(mutex_);
    here_.push_back(std::move(thing));
  }

  /// Destroys those that are here.
  void clear() {
    const std::lock_guard lock(mutex_);
    here_.clear();
  }

  /// How often one had to be made.
  std::uint64_t made() const {
    const std::lock_guard lock(mutex_);
    return made_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Thing>> here_;
  std::uint64_t made_ = 0;
};

}  // namespace ckpt
