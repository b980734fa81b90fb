// ParameterServer for Python: every call that waits does so without the GIL and ends with Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

void bind_parameter_server(nanobind::module_& module);

}  // namespace ckpt::python
