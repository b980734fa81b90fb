// What `inspect --network` says: devices, which of them each rank would use, and what UCX can do.
#pragma once

namespace ckpt {

/// For `ranks` ranks on this host; 0: one for each GPU, else 8. 2 when a filter or an address that
/// the environment gives is refused.
int inspect_network(int ranks);

}  // namespace ckpt
