// Status as Python exceptions, and exceptions as Status.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "checkpoint_engine/status.h"

namespace ckpt::python {

namespace nb = nanobind;

/// Raises the class of checkpoint_engine.errors that `status` belongs to. Needs the GIL.
[[noreturn]] void raise(const Status& status);

inline void raise_if_error(const Status& status) {
  if (!status.is_ok()) raise(status);
}

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.status());
  return std::move(result).value();
}

/// "ValueError: the text", of a kind for what the caller's code has raised. Needs the GIL.
Status raised_by(std::string_view whose, const nb::python_error& error);

}  // namespace ckpt::python
