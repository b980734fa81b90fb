// Registration of more memory than a device takes at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

struct ucp_mem;

namespace ckpt::ucx {

/// The largest piece tried; devices of today take more, registering in parallel does not.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 30;
/// Below this a refusal is a lack of lockable memory, not a limit of one piece.
inline constexpr std::uint64_t kSmallestPieceBytes = 64 << 20;

struct Pieces {
  std::vector<ucp_mem*> handles;  ///< empty after an error
  int status = 0;                 ///< of UCX; not 0: why there is no more
  std::uint64_t bytes = 0;        ///< how far it came
};

/// Registers [data, data + bytes) in pieces of at most kPieceBytes, smaller ones where `map`
/// refuses; each but the last is a multiple of kReadGrain, which no request crosses. After an error
/// all that was registered is given to `unmap`.
Pieces map_in_pieces(std::byte* data, std::uint64_t bytes,
                     const std::function<int(std::byte*, std::uint64_t, ucp_mem**)>& map,
                     const std::function<void(ucp_mem*)>& unmap);

}  // namespace ckpt::ucx
