#include "log.h"

#include <string>

#include "base/log.h"
#include "gil.h"
#include "text.h"

namespace ckpt::python {
namespace {

/// Numbers of Python's logging.
int python_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return 10;
    case LogLevel::kInfo:
      return 20;
    case LogLevel::kWarning:
      return 30;
    case LogLevel::kError:
      break;
  }
  return 40;
}

void set_log(nb::object sink) {
  if (sink.is_none()) {
    const nb::gil_scoped_release without_gil;
    return set_log_sink({});
  }
  const auto shared = shared_object(std::move(sink));
  const nb::gil_scoped_release without_gil;
  set_log_sink([shared](LogLevel level, std::string_view text) {
    const nb::gil_scoped_acquire gil;
    try {
      (*shared)(python_level(level), str_of(text));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("the log of checkpoint_engine");
    }
  });
}

}  // namespace

void bind_log(nb::module_& module) {
  module.def("set_log", &set_log, nb::arg("sink").none(),
             "Calls sink(level, text) for every line, on any thread; None drops them.");
}

}  // namespace ckpt::python
