// UpdateReport as a Python dictionary.
#pragma once

#include <nanobind/nanobind.h>

#include "checkpoint_engine/parameter_server.h"

namespace ckpt::python {

/// The fields of checkpoint_engine.UpdateReport by name.
nanobind::dict report_fields(const UpdateReport& report);

}  // namespace ckpt::python
