// What NCCL does on its own on this machine.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "checkpoint_engine/parameter_server.h"
#include "device/device.h"

namespace ckpt::bench {

/// Collective over the job, in which every rank has a GPU of its own (one rank may be alone): what
/// a communicator takes to make, and to connect by a first call; of device memory when it is made,
/// after a small call, after a large one, after all of them, and what is left when it has been
/// freed; and GB/s that reach each GPU, of one root and of all at once, by size.
Result<nlohmann::json> measure_nccl(ParameterServer& server, Device& device);

}  // namespace ckpt::bench
