// Takes one announced bucket: checks it, copies and verifies its tensors, hands the rest to the
// engine.
#pragma once

#include <memory>

#include "base/deadline.h"
#include "checkpoint_engine/receiver.h"
#include "checkpoint_engine/status.h"
#include "worker/native_messages.h"
#include "worker/ring_mapping.h"

namespace ckpt {

/// Ok when every entry lies in a ring of `ring_bytes` bytes, at a multiple of 256, and is a whole
/// tensor.
Status check_bucket(const native::Bucket& bucket, std::uint64_t ring_bytes);

/// Everything in `bucket` is loaded, and verified when `verify`, on return. kDataLoss names the
/// first tensor whose bytes are not the announced ones. Nothing of the bucket was loaded then,
/// except from a host ring, whose tensors are copied while they are digested: the destinations hold
/// the wrong bytes, and nothing was given to load().
Result<BucketAck> load_bucket(const native::Bucket& bucket,
                              const std::shared_ptr<RingMapping>& ring, Loader& loader, bool verify,
                              Deadline deadline);

}  // namespace ckpt
