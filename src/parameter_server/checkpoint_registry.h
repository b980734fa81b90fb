// The checkpoints of which this rank holds a part, and what all ranks hold of the gathered one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/catalog.h"
#include "checkpoint_engine/parameter_server.h"
#include "memory/pool_reclaimer.h"
#include "memory/shared_pool.h"
#include "parameter_server/job_membership.h"
#include "parameter_server/metas_exchange.h"
#include "parameter_server/offered_copy.h"
#include "parameter_server/registered_checkpoint.h"

namespace ckpt {

/// One thread at a time.
class CheckpointRegistry {
 public:
  /// The referred objects outlive the registry. `threads` read and digest; `timeout_seconds`: how
  /// long a gather is waited for; `reader_patience_seconds`: and readers of a pool that goes.
  CheckpointRegistry(const JobMembership& job, Device& device, int threads, double timeout_seconds,
                     double reader_patience_seconds)
      : job_(job),
        device_(device),
        threads_(threads),
        timeout_seconds_(timeout_seconds),
        reader_patience_seconds_(reader_patience_seconds) {}

  /// A name that is there already is refused and stays as it is. `abort` ends it.
  Status add(const std::string& name, const Registration& part, AbortSignal* abort);
  /// The memory goes back to the system in the background; the next add() takes it over where the
  /// size is the same, else waits for that. Waits for readers of other jobs. What was gathered of
  /// it is forgotten.
  Status remove(const std::string& name, bool force);
  /// What this rank holds of `name`; null: nothing.
  const RegisteredCheckpoint* find(const std::string& name) const;

  /// Collective over the job.
  Status gather(const std::string& name, AbortSignal* abort);
  /// Collective over the job, after load_metas: this rank keeps its share of what is loaded from
  /// now on, and offers it.
  Status offer_loaded(AbortSignal* abort);
  /// Null: nothing is offered.
  std::shared_ptr<OfferedCopy> offered_copy() const { return offered_copy_; }
  /// Of the gathered checkpoint, as they were loaded, or of what is offered of that.
  Result<std::string> export_metas() const;
  /// Metas of another job, whose owners are then the ranks behind those of this one.
  Status load_metas(const std::string& json);
  /// Of the gathered or loaded checkpoint; null: none.
  const std::shared_ptr<const Catalog>& catalog() const { return catalog_; }
  bool was_loaded() const { return loaded_ != nullptr; }

 private:
  RegistrationContext context();

  const JobMembership& job_;
  Device& device_;
  const int threads_;
  const double timeout_seconds_;
  const double reader_patience_seconds_;
  SharedPool shared_pool_;
  PoolReclaimer reclaimer_;
  std::uint64_t registrations_ = 0;
  std::map<std::string, std::unique_ptr<RegisteredCheckpoint>> checkpoints_;
  MetasExchange exchange_;
  std::shared_ptr<const Catalog> catalog_;
  std::shared_ptr<const Metas> loaded_;  // what `catalog_` was made of; null: it was gathered
  std::shared_ptr<OfferedCopy> offered_copy_;
  std::shared_ptr<const Catalog> offered_;  // by all ranks of this job
};

}  // namespace ckpt
