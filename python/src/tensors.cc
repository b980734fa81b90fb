#include "tensors.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "checkpoint_engine/tensor.h"
#include "errors.h"

namespace ckpt::python {
namespace {

using Shape = std::vector<std::int64_t>;

DType dtype_named(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) raise(invalid_argument(concat("no dtype ", quoted(name), " in safetensors files")));
  return *dtype;
}

/// torch counts pairs of F4 elements, safetensors files single ones.
std::pair<std::string, Shape> torch_dtype_and_shape(const std::string& name, Shape shape) {
  const DType dtype = dtype_named(name);
  if (dtype == DType::kF4 && !shape.empty()) shape.back() /= 2;
  return {std::string(torch_dtype_name(dtype)), std::move(shape)};
}

std::uint64_t tensor_bytes(const std::string& name, Shape shape) {
  return value_or_raise(make_tensor_info("", dtype_named(name), std::move(shape))).bytes;
}

/// Bytes of what torch counts as an element.
int torch_itemsize(const std::string& name) {
  const auto dtype = dtype_from_torch_name(name);
  if (!dtype) raise(invalid_argument(concat("no dtype ", quoted(name), " of torch is known")));
  return std::max(8, dtype_bits(*dtype)) / 8;
}

}  // namespace

void bind_tensors(nb::module_& module) {
  module.def("torch_dtype_and_shape", &torch_dtype_and_shape, nb::arg("dtype"), nb::arg("shape"),
             "What torch calls a tensor of a safetensors file's dtype and shape.");
  module.def("torch_itemsize", &torch_itemsize, nb::arg("dtype"));
  module.def("tensor_bytes", &tensor_bytes, nb::arg("dtype"), nb::arg("shape"));
}

}  // namespace ckpt::python
