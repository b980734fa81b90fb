// One read under way, shared by its handle and the progress thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/read_outcome.h"
#include "transport/read_plan.h"
#include "transport/transport.h"
#include "transport/ucx/progress.h"

namespace ckpt::ucx {

struct PeerState;

struct ReadState : ReadOutcome {
  /// What is known of a request that was sent.
  struct Waiting {
    bool receiving = false;
    bool data = false;
    bool served = false;
  };

  // Set before the read is started.
  std::shared_ptr<PeerState> peer;
  std::uint64_t bytes = 0;
  Deadline deadline = Deadline::after_seconds(0);
  std::vector<ReadRequest> requests;

  // Of the progress thread.
  std::uint64_t id = 0;
  Transport::ReadCallback callback;
  std::uint32_t next_request = 0;
  std::map<std::uint32_t, Waiting> waiting;
  std::optional<Progress::TimerKey> timer;
  bool retired = false;
};

}  // namespace ckpt::ucx
