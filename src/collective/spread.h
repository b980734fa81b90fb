// Spreading: how bytes that another rank holds come to this one. Two operations, each with its own
// backends:
//   cross  between hosts: owner -> stops of other hosts        chain/ (over a transport), nccl/
//   local  inside a host: stop -> the recipients beside it     peer/ (device memory of other
//   processes), nccl/
// On device `host` the ranks of one host share their ring, so that there is nothing to spread
// locally.
//
// Every backend works its stream off in plan order and pulls: a chunk is taken when its source has
// reported it and the ring has room for it. So the source never waits for a receiver that is late,
// and an abort needs nobody's help.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/status.h"

namespace ckpt {

/// One rank's share of one spreading operation in one pass. run() is called once, on a thread of
/// its own.
class Spread {
 public:
  virtual ~Spread() = default;
  /// "chain", "peer", "nccl".
  virtual std::string_view name() const = 0;
  /// Returns when every chunk has arrived here and been reported, or with the first error (abort's
  /// cause, a lost peer, the deadline with the name of who was waited for). Afterwards no memory of
  /// this pass is touched any more.
  virtual Status run(Deadline deadline, AbortSignal& abort) = 0;
  /// Bytes that have arrived so far. Any thread.
  virtual std::uint64_t bytes() const = 0;
};

}  // namespace ckpt
