// How a read is cut into requests: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/transport.h"

namespace ckpt {

/// Requests never cross a multiple of this offset of a region, so memory that is registered in
/// pieces of whole grains is read piece by piece. Both sides must agree: part of the protocol.
inline constexpr std::uint64_t kReadGrain = 2 << 20;
/// Pieces up to this size travel together, copied on both sides; larger ones go to their place
/// directly, by a request of their own.
inline constexpr std::uint64_t kGatherPieceBytes = 128 << 10;
/// Bytes and pieces of one request that gathers small pieces.
inline constexpr std::uint64_t kGatherBytes = 256 << 10;
inline constexpr std::size_t kGatherPieces = 512;

/// Checks ranges against the regions of an owner; `label` names it in errors (kInvalidArgument).
Status check_ranges(std::span<const ReadRange> ranges, std::span<const RemoteRegion> regions,
                    std::string_view label);

/// Up to this size an owner sends data without asking the reader first where to put it. Over TCP
/// that costs no copy more, and saves the way there and back before each piece, on which the link
/// would have nothing to do.
inline constexpr std::uint64_t kEagerBytes = 256 << 10;

/// What one message asks for: one large piece, or several small ones.
struct ReadRequest {
  std::vector<ReadRange> pieces;
  std::uint64_t bytes = 0;
};

/// Requests that cover `ranges` exactly, in their order, none across a multiple of `grain`, which
/// divides kReadGrain. Empty ranges vanish.
std::vector<ReadRequest> plan_requests(std::span<const ReadRange> ranges,
                                       std::uint64_t grain = kReadGrain);

}  // namespace ckpt
