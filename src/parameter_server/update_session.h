// One update on one rank that takes part in it: its epoch, its channel, its engine call, and its
// passes one after the other.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "parameter_server/engine_call_thread.h"
#include "parameter_server/note_box.h"
#include "parameter_server/pass.h"
#include "parameter_server/pass_agreement.h"
#include "parameter_server/pass_messages.h"
#include "parameter_server/pass_setup.h"
#include "worker/channel.h"

namespace ckpt {

/// Used by one thread.
class UpdateSession {
 public:
  /// Collective over the recipients, given by instance: everything up to and including the first
  /// pass's prepare. Of `channel` the job, the secret and the times are used; `cached_plan`
  /// outlives the session.
  static Result<std::unique_ptr<UpdateSession>> prepare(
      PassSetup setup, std::string checkpoint_name, std::vector<std::vector<int>> instances,
      UpdateOptions options, ChannelOptions channel, std::shared_ptr<NoteBox> notes,
      std::shared_ptr<const CachedPlan>& cached_plan);
  /// Ends the update as failed unless commit() has returned.
  ~UpdateSession();

  /// Collective. On failure the result is the first cause, the same on every rank.
  Result<UpdateReport> commit(const EngineCall& call);
  std::uint64_t epoch() const { return setup_.epoch; }
  /// Ends it on every rank.
  void abort(const Status& cause);

 private:
  UpdateSession(PassSetup setup, std::string checkpoint_name,
                std::vector<std::vector<int>> instances, UpdateOptions options,
                std::shared_ptr<NoteBox> notes, std::shared_ptr<const CachedPlan>& cached_plan);

  Status run_passes(const EngineCall& call, UpdateReport& report);
  Status run_pass(UpdateReport& report);
  Result<WorkerHello> accept_worker();
  void wait_for_news(bool for_workers, Deadline wake);
  Result<PassNote> next_decision();
  void take_notes(PassAgreement* agreement);
  void call_returned(const Status& status);
  void tell(int rank, const PassNote& note);
  Status fail(const Status& status);
  bool is_coordinator() const { return setup_.rank == recipients_.front(); }

  PassSetup setup_;
  const std::string checkpoint_name_;
  const std::vector<std::vector<int>> instances_;
  const std::vector<int> recipients_;
  const UpdateOptions options_;
  const std::shared_ptr<NoteBox> notes_;
  std::shared_ptr<const CachedPlan>& cached_plan_;
  std::unique_ptr<WorkerChannel> channel_;
  std::unique_ptr<Pass> pass_;
  std::uint32_t pass_number_ = 0;
  const std::uint64_t streams_before_;        // made by the device
  std::unique_ptr<PassAgreement> agreement_;  // of the coordinator
  std::optional<PassNote> decision_;
  std::vector<int> returned_calls_;  // ranks whose engine call has returned with success
  std::chrono::steady_clock::time_point begin_, commit_begin_;
  std::optional<double> first_bucket_seconds_;
  bool over_ = false;

  std::unique_ptr<EngineCallThread> engine_call_;  // last: its thread uses the members above
};

}  // namespace ckpt
