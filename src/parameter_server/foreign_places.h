// Whether metas of another job say where every byte of a tensor can be read.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Ok when the owner's tensors lie apart from each other, each inside regions that follow each
/// other, and its transport descriptor has these regions and the door; or when there is no
/// descriptor: it can then not be read at all, and others may stand in for it. `transport_kind`:
/// Transport::name, or empty for any. The error begins with `label`.
Status check_places(const RankMetas& owner, std::string_view transport_kind,
                    const std::string& label);

}  // namespace ckpt
