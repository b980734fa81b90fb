// A transfer engine written in Python, for the C++ engine.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "checkpoint_engine/transfer_engine.h"

namespace ckpt::python {

namespace nb = nanobind;

/// `engine` has the methods of checkpoint_engine.mooncake.MooncakeTransfer. Needs the GIL.
std::shared_ptr<TransferEngine> make_transfer_engine(nb::object engine);

void bind_transfer_engine(nb::module_& module);

}  // namespace ckpt::python
