// Python objects that C++ threads may hold and let go.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace ckpt::python {

namespace nb = nanobind;

/// Shares a Python object with threads that do not hold the GIL; whoever is last takes it.
inline std::shared_ptr<nb::object> shared_object(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* last) {
            const nb::gil_scoped_acquire gil;
            delete last;
          }};
}

}  // namespace ckpt::python
