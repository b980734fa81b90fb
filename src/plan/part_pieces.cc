#include "plan/part_pieces.h"

#include "plan/weights.h"

namespace ckpt {

void append_pieces(const PartDraft& part, std::uint64_t pieces, const SourceQueues& queues,
                   std::vector<PartDraft>& out) {
  const std::uint64_t target = (part.bytes + pieces - 1) / pieces;
  PartDraft piece = part;
  piece.bytes = 0;
  std::uint64_t left = part.bytes;
  for (std::uint32_t i = part.first_tensor; i < part.end_tensor; ++i) {
    const std::uint64_t bytes = padded(queues.tensors[i].bytes);
    // The border nearest to the target; what is left behind it must be worth a piece.
    const bool full = piece.bytes > 0 && piece.bytes + bytes / 2 >= target;
    if (full && left >= target / 2) {
      piece.end_tensor = i;
      out.push_back(piece);
      piece.first_tensor = i;
      piece.bytes = 0;
    }
    piece.bytes += bytes;
    left -= bytes;
  }
  piece.end_tensor = part.end_tensor;
  out.push_back(piece);
}

}  // namespace ckpt
