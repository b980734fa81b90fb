#include "tensors.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "base/strings.h"
#include "checkpoint_engine/tensor.h"
#include "errors.h"

namespace ckpt::python {
namespace {

/// Bytes of what torch counts as an element.
int torch_itemsize(const std::string& name) {
  const auto dtype = dtype_from_torch_name(name);
  if (!dtype) raise(invalid_argument(concat("no dtype ", quoted(name), " of torch is known")));
  return std::max(8, dtype_bits(*dtype)) / 8;
}

}  // namespace

void bind_tensors(nb::module_& module) {
  module.def("torch_itemsize", &torch_itemsize, nb::arg("dtype"));
}

}  // namespace ckpt::python
