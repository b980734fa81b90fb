// The native wire's receiver for Python: tensors are handed to Python code where they lie in the
// ring.
#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

void bind_receiver(nanobind::module_& module);

}  // namespace ckpt::python
