// Names of a channel's endpoints.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// "ipc://@checkpoint-engine-<job>-<rank>-<epoch>.v2.sock", short enough for libzmq with ".native"
/// behind it (107 bytes). A job name that is long or has other characters than letters, digits,
/// '.', '_' and '-' is cut and cleaned, and its hash appended: equal on every rank, different for
/// different jobs.
std::string channel_address(std::string_view job, int rank, std::uint64_t epoch);

/// Where the native wire of the channel at `address` listens; kUnsupported for an address that is
/// not one of ours.
Result<std::string> native_address(const std::string& address);

/// The abstract socket name of an "ipc://@name" address, without the '@'; kInvalidArgument for
/// another form or a name over 107 bytes.
Result<std::string> abstract_name(const std::string& address);

}  // namespace ckpt
