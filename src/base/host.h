// Who and where this process is.
#pragma once

#include <string>

namespace ckpt {

/// What ranks compare to learn whether they share memory: `PS_HOST_ID`, else the kernel's boot id
/// and the identity of /dev/shm (two containers of one machine with a /dev/shm each are two hosts).
std::string host_id();
/// The node name, for messages.
std::string host_name();
/// 16 random hexadecimal digits.
std::string random_id();

}  // namespace ckpt
