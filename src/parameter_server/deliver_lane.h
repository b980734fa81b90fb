// The deliver lane: buckets that have arrived are announced to this rank's worker, in plan order,
// and their ring space is given back when the worker has loaded them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "checkpoint/catalog.h"
#include "collective/host_progress.h"
#include "device/device.h"
#include "parameter_server/offer_lane.h"
#include "plan/schedule.h"
#include "worker/channel.h"

namespace ckpt {

/// The referred objects outlive it.
struct DeliverContext {
  const Catalog& catalog;
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;
  const HostProgressLayout& layout;
  WorkerChannel& channel;
  int rank;
  Wire wire;
  bool verify;
  const std::byte* ring;               ///< for the check before a stock worker is told
  std::unique_ptr<CopyStream> stream;  ///< the same
  OfferLane* offer;                    ///< null: what is loaded is not kept
  std::function<void()> first_bucket;  ///< runs when the first bucket has been announced
  std::function<void(std::uint64_t loaded)> progress_report;
};

struct DeliverCounts {
  std::uint64_t tensors = 0, bytes = 0, verified_tensors = 0;
  /// In which this rank checked its ring before a stock worker was told, or a native worker checked
  /// its ring in a pass of its own; and how much was checked so.
  double check_seconds = 0;
  std::uint64_t checked_bytes = 0;
};

class DeliverLane {
 public:
  explicit DeliverLane(DeliverContext context) : context_(std::move(context)) {}

  /// Blocking, once: returns when the worker has acknowledged every bucket.
  Status run(Deadline deadline, AbortSignal& abort);
  const DeliverCounts& counts() const { return counts_; }

 private:
  bool has_arrived(std::uint32_t bucket) const;
  Status wait_until_arrived(std::uint32_t bucket, Deadline deadline, AbortSignal& abort) const;
  Status announce(std::uint32_t bucket, Deadline deadline, AbortSignal& abort);
  Status check_ring(std::uint32_t bucket, Deadline deadline, AbortSignal& abort);
  Status take_ack(std::uint32_t bucket, Deadline deadline, AbortSignal& abort);

  DeliverContext context_;
  DeliverCounts counts_;
};

}  // namespace ckpt
