// Part drafts, and how one is cut into several.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/sources.h"

namespace ckpt {

/// What one owner gives to a bucket: neighbours of its queue.
struct PartDraft {
  int owner;
  std::uint32_t bucket;
  std::uint32_t first_tensor, end_tensor;  ///< in SourceQueues::tensors
  std::uint64_t bytes;                     ///< a multiple of kRingAlignment
};

/// Appends `part` to `out`, cut between tensors into `pieces` of about equal size, or fewer.
void append_pieces(const PartDraft& part, std::uint64_t pieces, const SourceQueues& queues,
                   std::vector<PartDraft>& out);

}  // namespace ckpt
