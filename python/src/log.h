// The engine's log lines as records of Python's logging.
#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

void bind_log(nanobind::module_& module);

}  // namespace ckpt::python
