// checkpoint_engine._core: the C++ API for the package's Python code, which alone uses it.
#include <nanobind/nanobind.h>

#include "engine_call.h"
#include "engine_client.h"
#include "log.h"
#include "parameter_server.h"
#include "process_group.h"
#include "receiver.h"
#include "tensors.h"
#include "text.h"
#include "transfer_engine.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ engine. Private: use checkpoint_engine.ps and checkpoint_engine.worker.";
  // What a caller's global or daemon thread still holds when the process ends is no leak of ours.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = CKPT_VERSION;
  ckpt::python::bind_log(module);
  ckpt::python::bind_text(module);
  ckpt::python::bind_tensors(module);
  ckpt::python::bind_engine_call(module);
  ckpt::python::bind_engine_client(module);
  ckpt::python::bind_transfer_engine(module);
  ckpt::python::bind_parameter_server(module);
  ckpt::python::bind_process_group(module);
  ckpt::python::bind_receiver(module);
}
