#include "text.h"

#include <nanobind/stl/string.h>

#include "base/strings.h"

namespace ckpt::python {
namespace {

constexpr const char* kUnknown = "backslashreplace";

/// What a call of Python's C API has made; nothing where it raised, which is forgotten.
nb::object made(PyObject* object) {
  if (object == nullptr) PyErr_Clear();
  return nb::steal(object);
}

}  // namespace

std::string utf8_of(nb::handle text) {
  const nb::object bytes = made(PyUnicode_AsEncodedString(text.ptr(), "utf-8", kUnknown));
  if (!bytes.is_valid()) return {};
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::object str_of(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), kUnknown));
}

std::string text_of(nb::handle exception) {
  nb::object text = made(PyObject_Str(exception.ptr()));
  if (!text.is_valid()) text = made(PyObject_Repr(exception.ptr()));
  return text.is_valid() ? utf8_of(text) : "(it has no text: its __str__ and __repr__ raise)";
}

std::string type_and_text_of(nb::handle exception) {
  const nb::object name = made(PyObject_GetAttrString(exception.type().ptr(), "__name__"));
  return concat(name.is_valid() ? utf8_of(name) : "an exception", ": ", text_of(exception));
}

void bind_text(nb::module_& module) {
  module.def("type_and_text_of", &type_and_text_of, nb::arg("exception"),
             "As in \"ValueError: the text\", in UTF-8 whatever it holds; never raises.");
}

}  // namespace ckpt::python
