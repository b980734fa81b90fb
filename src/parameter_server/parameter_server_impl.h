// One rank's parameter server. parameter_server.cc: its life and what it holds; updates.cc: its
// part in updates.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "checkpoint_engine/parameter_server.h"
#include "parameter_server/checkpoint_registry.h"
#include "parameter_server/job_membership.h"
#include "parameter_server/note_router.h"
#include "parameter_server/running_calls.h"
#include "parameter_server/server_settings.h"
#include "parameter_server/update_session.h"

namespace ckpt {

class ParameterServerImpl;

/// Either this rank's session, or (for a rank that is no recipient) the right to wait for the end.
struct OwnUpdate : PreparedUpdate {
  ~OwnUpdate() override;

  ParameterServerImpl* server = nullptr;
  std::shared_ptr<const std::string>
      checkpoint_name;  // the server knows by it that the update is not over
  std::unique_ptr<UpdateSession> session;
  bool all_ranks_vote = false;
  bool over = false;
  Deadline deadline = Deadline::after_seconds(0);
};

class ParameterServerImpl : public ParameterServer {
 public:
  /// `abort` ends the wait for the other ranks.
  static Result<std::unique_ptr<ParameterServerImpl>> create(ParameterServerOptions options,
                                                             AbortSignal* abort = nullptr);
  ~ParameterServerImpl() override;

  int rank() const override { return job_->rank(); }
  /// Of the ranks of this host; the GPU of that number (modulo their count) is this rank's.
  int local_rank() const { return job_->local_rank(); }
  int world_size() const override { return job_->world_size(); }
  Status register_checkpoint(const std::string& name, const Registration& part) override;
  Status unregister_checkpoint(const std::string& name, bool force) override;
  Status gather_metas(const std::string& name) override;
  Result<std::string> export_metas() const override;
  Status load_metas(const std::string& json) override;
  Status offer_loaded() override;
  std::string checkpoint_name() const override;
  Result<std::unique_ptr<PreparedUpdate>> prepare(const std::string& name,
                                                  const UpdateOptions& options) override;
  Result<UpdateReport> commit(std::unique_ptr<PreparedUpdate> prepared,
                              const EngineCall& call) override;
  void abort(std::unique_ptr<PreparedUpdate> prepared, const Status& cause) override;
  void cancel(const Status& cause) override { running_.cancel(cause.on_rank(rank())); }
  Status barrier(double timeout_seconds) override;
  Result<std::vector<std::string>> all_gather(const std::string& mine,
                                              double timeout_seconds) override;

  void drop(OwnUpdate& update);

 private:
  Status start(AbortSignal* abort);
  void forget_stale_plan();
  Status check_update(const std::string& name) const;
  Status wait_for_own_ring(Deadline deadline, RunningCalls::Call& call);
  Status refuse_update(const std::vector<int>& recipients, const Status& why, Deadline deadline);
  Result<std::unique_ptr<UpdateSession>> prepare_session(const std::string& name,
                                                         std::vector<std::vector<int>> instances,
                                                         const UpdateOptions& options,
                                                         Deadline deadline,
                                                         RunningCalls::Call& call);
  void end_update_on_cancel(RunningCalls::Call& call, std::uint64_t epoch);
  void give_up(OwnUpdate& update, const Status& cause);
  Status vote_of_all(const Status& mine, Deadline deadline, AbortSignal* abort = nullptr);
  std::string name_in_update() const;

  ParameterServerOptions options_;
  double memory_fraction_ = 0.9;
  MemoryRequest memory_;
  SpreadChoice spread_;

  // In this order: each is used by those below it until they are gone.
  NoteRouter notes_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<JobMembership> job_;
  std::unique_ptr<KeptCommunicator> communicator_;  // with collective nccl
  ClosingMemory closing_;
  std::unique_ptr<KeptBuffers> kept_;  // with keep_buffers
  std::unique_ptr<CheckpointRegistry> registry_;

  mutable RunningCalls running_;  // whose turn guards what is above and below
  std::shared_ptr<const CachedPlan> cached_plan_;
  std::weak_ptr<const std::string> in_update_;  // set while an update is prepared and not over
};

}  // namespace ckpt
