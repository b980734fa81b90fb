// Numbers of the active messages. Part of the protocol.
#pragma once

namespace ckpt::ucx {

inline constexpr unsigned kMessageId = 1;
inline constexpr unsigned kDataId = 2;

}  // namespace ckpt::ucx
