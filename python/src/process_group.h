#pragma once

#include <nanobind/nanobind.h>

namespace ckpt::python {

/// Hub and ProcessGroup: what checkpoint_engine.distributed does without torch.
void bind_process_group(nanobind::module_& module);

}  // namespace ckpt::python
