// Under which address others reach this host, and through which interface.
#pragma once

#include <string>

#include "checkpoint_engine/status.h"

namespace ckpt {

struct OwnAddress {
  std::string address;    ///< "10.0.0.7", "fd00::7"; empty: this host has no way to the master
  std::string interface;  ///< that has it, e.g. "eth0"; empty: unknown, or any
  std::string reason;     ///< "given", "PS_HOST_IP", "route to 10.0.0.1"; for the log
};

/// `given` (--advertise: an address or the name of an interface), else PS_HOST_IP, else what the
/// kernel would use to reach `master_host`; nothing is sent. kInvalidArgument when what was given
/// is no address of this host. Without a route the address is empty: single-host jobs need none.
Result<OwnAddress> own_address(const std::string& given, const std::string& master_host);

}  // namespace ckpt
