// The hub's name for one connection.
#pragma once

#include <string>

namespace ckpt::control {

/// Made by the hub's socket when a connection is accepted, so that nobody can claim another's.
using Route = std::string;

}  // namespace ckpt::control
