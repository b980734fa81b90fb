// Under which address others reach this host, and through which interface.
#pragma once

#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt {

struct OwnAddress {
  std::string address;    ///< "10.0.0.7", "fd00::7"; empty: this host has no way to the master
  std::string interface;  ///< that has it, e.g. "eth0"; empty: unknown, or any
  std::string reason;     ///< "given", "PS_HOST_IP", "route to 10.0.0.1"; for the log
  bool named = false;     ///< by the user
};

/// An address of an interface that is up.
struct InterfaceAddress {
  std::string interface, address;
  bool loopback = false;
  bool link_local = false;  ///< means nothing without its interface
};

/// Under which other hosts may reach one whose hub is on the loopback interface: `default_source`,
/// from which the default route sends (empty: there is none), else the first address of `own` that
/// is neither loopback nor link-local. Null: other hosts cannot reach it.
const InterfaceAddress* reachable_address(const std::vector<InterfaceAddress>& own,
                                          const std::string& default_source);

/// What the user means by `wanted`, an address or the name of an interface of `own`. Of an
/// interface, the first address that is not link-local: such a one means nothing to another host,
/// which is also why it is refused when it is given. kInvalidArgument says what there is. `reason`:
/// for messages.
Result<OwnAddress> named_address(const std::vector<InterfaceAddress>& own,
                                 const std::string& wanted, const std::string& reason);

/// `given` (--advertise: an address or the name of an interface), else PS_HOST_IP, else what the
/// kernel would use to reach `master_host`; nothing is sent. Where that is the loopback interface,
/// as in a job of one host, the reachable_address: others may load its metas. kInvalidArgument when
/// what was given is no address of this host. Without a route, or without an answer about the
/// master's name in some seconds, the address is empty: single-host jobs need none.
Result<OwnAddress> own_address(const std::string& given, const std::string& master_host);

}  // namespace ckpt
