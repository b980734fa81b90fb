// What an update gives to each of its passes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint/catalog.h"
#include "collective/nccl/kept_communicator.h"
#include "collective/progress_signal.h"
#include "control/control_client.h"
#include "device/device.h"
#include "memory/host_pool.h"
#include "parameter_server/closing_memory.h"
#include "parameter_server/kept_buffers.h"
#include "parameter_server/offered_copy.h"
#include "plan/plan.h"
#include "transport/transport.h"

namespace ckpt {

/// The referred objects outlive the update.
struct PassSetup {
  ControlClient& control;
  Device& device;
  Transport* transport;            ///< null: this rank has none; a plan that needs one is refused
  ProgressSignals* signals;        ///< null exactly when `transport` is
  KeptCommunicator* communicator;  ///< with collective `nccl`, else null
  ClosingMemory& closing;          ///< where memory goes that others may still have open
  KeptBuffers* kept;               ///< null: buffers are not kept between updates
  const HostPool* pool;            ///< what this rank has registered; null: nothing
  /// Where what is loaded is kept for other jobs; null: nowhere.
  std::shared_ptr<OfferedCopy> offered_copy;
  std::shared_ptr<const Catalog> catalog;
  int rank;
  int world_size;
  std::string host_id;  ///< as the plan sees it (SpreadChoice)
  NetworkPlace network;
  std::string job;
  std::string checkpoint_name;
  std::string shared_prefix;  ///< shared_memory_prefix of this job and host
  std::uint64_t epoch;
  MemoryRequest memory;  ///< its `sharing` decides who has a ring
  double memory_fraction;
  bool verify;
  std::uint32_t instance_size;
  Deadline deadline;
  std::shared_ptr<AbortSignal> abort;  ///< watches `epoch`
};

/// What every name of ours in /dev/shm begins with.
inline constexpr const char* kSharedMemoryPrefix = "checkpoint-engine-";

/// What all names in /dev/shm of this job on this host begin with (two hosts of PS_HOST_ID are
/// two).
std::string shared_memory_prefix(const std::string& job, const std::string& host_id);

}  // namespace ckpt
