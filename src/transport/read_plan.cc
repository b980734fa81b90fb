#include "transport/read_plan.h"

#include <algorithm>

#include "base/strings.h"

namespace ckpt {

Status check_ranges(std::span<const ReadRange> ranges, std::span<const RemoteRegion> regions,
                    std::string_view label) {
  for (const ReadRange& range : ranges) {
    // Regions come in order of registration, with rising ids.
    const auto region = std::lower_bound(
        regions.begin(), regions.end(), range.region,
        [](const RemoteRegion& candidate, std::uint64_t id) { return candidate.id < id; });
    if (region == regions.end() || region->id != range.region) {
      return invalid_argument(
          concat("read from ", label, ": its descriptor has no region ", range.region));
    }
    if (range.offset > region->bytes || range.bytes > region->bytes - range.offset) {
      return invalid_argument(concat("read from ", label, ": ", range.bytes, " bytes at offset ",
                                     range.offset, " end behind region ", range.region, " of ",
                                     region->bytes, " bytes"));
    }
    if (range.destination == nullptr && range.bytes > 0) {
      return invalid_argument(concat("read from ", label, ": no destination for ", range.bytes,
                                     " bytes of region ", range.region));
    }
  }
  return Status::ok();
}

std::vector<ReadRequest> plan_requests(std::span<const ReadRange> ranges, std::uint64_t grain) {
  std::vector<ReadRequest> requests;
  bool gathering = false;
  const auto add = [&](const ReadRange& piece) {
    const bool small = piece.bytes <= kGatherPieceBytes;
    if (!small || !gathering || requests.back().bytes + piece.bytes > kGatherBytes ||
        requests.back().pieces.size() == kGatherPieces) {
      requests.emplace_back();
    }
    gathering = small;
    requests.back().pieces.push_back(piece);
    requests.back().bytes += piece.bytes;
  };
  for (ReadRange rest : ranges) {
    while (rest.bytes > 0) {
      ReadRange piece = rest;
      piece.bytes = std::min(rest.bytes, grain - rest.offset % grain);
      add(piece);
      rest.offset += piece.bytes;
      rest.destination = static_cast<std::byte*>(rest.destination) + piece.bytes;
      rest.bytes -= piece.bytes;
    }
  }
  return requests;
}

}  // namespace ckpt
