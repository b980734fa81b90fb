// The call to an engine, made by Python code on a Python thread.
#pragma once

#include <nanobind/nanobind.h>

#include "checkpoint_engine/parameter_server.h"

namespace ckpt::python {

namespace nb = nanobind;

/// `start(call)` must return at once, having begun a thread that ends with call.finish(None), or
/// call.finish(text) for an error. That thread is Python's own, so that one that never returns
/// holds up neither the end of an update nor the end of the process.
EngineCall make_engine_call(nb::callable start);

void bind_engine_call(nb::module_& module);

}  // namespace ckpt::python
