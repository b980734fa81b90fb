// Calls that wait, as Python wants them: without the GIL, and ended by Ctrl-C.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint_engine/status.h"
#include "errors.h"

namespace ckpt::python {

/// Runs `work` on a thread of its own and waits for it without the GIL, but lets Python handle
/// signals meanwhile. When a handler raises (Ctrl-C), `interrupt` is called, `work` gets most of a
/// second to end, and the handler's exception goes on; `work` may then still be running, so it owns
/// all that it uses. Needs the GIL.
void wait_for(std::function<void()> work, const std::function<void()>& interrupt);

/// The same for work with an outcome, which is returned or raised.
template <typename T>
T interruptible(std::function<Result<T>()> work, const std::function<void()>& interrupt) {
  auto outcome = std::make_shared<std::optional<Result<T>>>();
  try {
    wait_for([outcome, work = std::move(work)] { outcome->emplace(work()); }, interrupt);
  } catch (...) {
    // It may have come all the same, and its end may wait for threads that want the GIL.
    const nb::gil_scoped_release without_gil;
    outcome.reset();
    throw;
  }
  return value_or_raise(std::move(**outcome));
}

inline void interruptible(std::function<Status()> work, const std::function<void()>& interrupt) {
  const auto outcome = std::make_shared<Status>();
  wait_for([outcome, work = std::move(work)] { *outcome = work(); }, interrupt);
  raise_if_error(*outcome);
}

}  // namespace ckpt::python
