// A transport over the application's transfer engine.
#pragma once

#include <memory>
#include <string>

#include "checkpoint_engine/transfer_engine.h"
#include "transport/transport.h"

namespace ckpt {

/// `label` names this rank to others. Takes the engine's message handler for as long as it lives.
std::unique_ptr<Transport> make_engine_transport(std::shared_ptr<TransferEngine> engine,
                                                 std::string label);

}  // namespace ckpt
