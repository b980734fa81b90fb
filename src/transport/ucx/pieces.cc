#include "transport/ucx/pieces.h"

#include <algorithm>

#include "transport/read_plan.h"

namespace ckpt::ucx {

Pieces map_in_pieces(std::byte* data, std::uint64_t bytes,
                     const std::function<int(std::byte*, std::uint64_t, ucp_mem**)>& map,
                     const std::function<void(ucp_mem*)>& unmap) {
  Pieces pieces;
  std::uint64_t limit = kPieceBytes;
  while (pieces.bytes < bytes) {
    const std::uint64_t size = std::min(limit, bytes - pieces.bytes);
    ucp_mem* handle = nullptr;
    pieces.status = map(data + pieces.bytes, size, &handle);
    if (pieces.status == 0) {
      pieces.handles.push_back(handle);
      pieces.bytes += size;
      continue;
    }
    limit = size / 2 / kReadGrain * kReadGrain;
    if (limit >= kSmallestPieceBytes) continue;
    for (ucp_mem* mapped : pieces.handles) unmap(mapped);
    pieces.handles.clear();
    break;
  }
  return pieces;
}

}  // namespace ckpt::ucx
