// The HTTP call that tells an engine to update, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

void bind_engine_client(nanobind::module_& module);

}  // namespace ckpt::python
