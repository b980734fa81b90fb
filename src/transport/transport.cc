#include "transport/transport.h"

#include "base/strings.h"

namespace ckpt {

Status Transport::can_read_into(DeviceKind /*kind*/) const {
  return unsupported(concat("transport ", name(), " reads into host memory only"));
}

Result<std::unique_ptr<Destination>> Transport::register_destination(Device& device,
                                                                     std::byte* /*data*/,
                                                                     std::uint64_t /*bytes*/) {
  return can_read_into(device.kind());
}

}  // namespace ckpt
