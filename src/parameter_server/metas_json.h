// Metas as JSON: for files that outlive a job and for other languages.
//
//   {"format": "checkpoint-engine metas", "version": 1, "checkpoint": NAME,
//    "layouts": [{"hash": HEX, "tensors": [{"name": TEXT, "dtype": "BF16", "shape": [2, 3]}, ...]},
//                ...],
//    "ranks": [{"layout": 0, "epoch": HEX, "host_id": TEXT, "digest_algorithm": 1,
//               "offsets": [0, 256, ...], "digests": [HEX, ...], "transport_descriptor": HEX,
//               "pool_regions": [{"pool_offset": 0, "bytes": 4096, "region": HEX}, ...],
//               "door_region": HEX,
//               "network": {"address": "10.0.0.7", "devices": ["eth0"], "mbit": 10000}}, ...]}
//
// Element i of "ranks" belongs to rank i, and its "layout" is an index into "layouts"; element i of
// its offsets and digests belongs to tensor i of that layout. HEX is a string of hexadecimal
// digits, since numbers above 2^53 do not survive every reader. Bytes that are no UTF-8 in a name
// are replaced, and the layout's hash then refuses the file. A text of 200,000 tensors takes some
// 25 MB: ranks gather the binary form (metas.h).
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/metas.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// Only for metas that Catalog::build accepts.
std::string metas_to_json(const Metas& metas);

/// A list of such objects is the metas of several jobs, joined (joined_metas.h). Unknown fields are
/// ignored, and transport_descriptor and those behind it may be absent. An
/// object without "format" is read in the form of field_metas_json.h. kInvalidArgument names the
/// field that is missing or wrong; kUnsupported for a later version.
Result<Metas> metas_from_json(std::string_view text);

}  // namespace ckpt
