#include "errors.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "base/strings.h"

namespace ckpt::python {

void raise(const Status& status) {
  const nb::object error = nb::module_::import_("checkpoint_engine.errors")
                               .attr("error_of")(std::string(status_code_name(status.code())),
                                                 status.to_string(), status.rank());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Status raised_by(std::string_view whose, const nb::python_error& error) {
  const std::string type = nb::cast<std::string>(error.type().attr("__name__"));
  return peer_error(concat(whose, " raised ", type, ": ", nb::str(error.value()).c_str()));
}

}  // namespace ckpt::python
