#include "errors.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "base/strings.h"
#include "text.h"

namespace ckpt::python {

void raise(const Status& status) {
  const nb::object error = nb::module_::import_("checkpoint_engine.errors")
                               .attr("error_of")(std::string(status_code_name(status.code())),
                                                 str_of(status.to_string()), status.rank());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Status raised_by(std::string_view whose, const nb::python_error& error) {
  return peer_error(concat(whose, " raised ", type_and_text_of(error.value())));
}

}  // namespace ckpt::python
