// dtypes and sizes of tensors, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

void bind_tensors(nanobind::module_& module);

}  // namespace ckpt::python
