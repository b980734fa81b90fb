// For what a test needs and does not test: an error ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "checkpoint_engine/status.h"

namespace ckpt::testing {

inline void must(const Status& status) {
  if (status.is_ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::abort();
}

template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

}  // namespace ckpt::testing
