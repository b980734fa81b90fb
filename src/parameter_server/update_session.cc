#include "parameter_server/update_session.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt {
namespace {

using Clock = std::chrono::steady_clock;

// From an engine's answer "done" to the connection of a worker that is merely slow to be seen.
constexpr std::chrono::seconds kConnectPatience{2};
// How long a rank that has failed waits for the hub to say what the first cause was.
constexpr double kCausePatienceSeconds = 2;

std::vector<int> flattened(const std::vector<std::vector<int>>& instances) {
  std::vector<int> ranks;
  for (const auto& instance : instances)
    ranks.insert(ranks.end(), instance.begin(), instance.end());
  return ranks;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

UpdateSession::UpdateSession(PassSetup setup, std::string checkpoint_name,
                             std::vector<std::vector<int>> instances, UpdateOptions options,
                             std::shared_ptr<NoteBox> notes,
                             std::shared_ptr<const CachedPlan>& cached_plan)
    : setup_(std::move(setup)),
      checkpoint_name_(std::move(checkpoint_name)),
      instances_(std::move(instances)),
      recipients_(flattened(instances_)),
      options_(std::move(options)),
      notes_(std::move(notes)),
      cached_plan_(cached_plan),
      streams_before_(setup_.device.streams_made()),
      begin_(Clock::now()) {}

Result<std::unique_ptr<UpdateSession>> UpdateSession::prepare(
    PassSetup setup, std::string checkpoint_name, std::vector<std::vector<int>> instances,
    UpdateOptions options, ChannelOptions channel, std::shared_ptr<NoteBox> notes,
    std::shared_ptr<const CachedPlan>& cached_plan) {
  channel.rank = setup.rank;
  channel.epoch = setup.epoch;
  channel.verify = setup.verify;
  channel.total_tensors = setup.catalog->tensors().size();
  channel.total_bytes = setup.catalog->total_bytes();
  std::unique_ptr<UpdateSession> session(
      new UpdateSession(std::move(setup), std::move(checkpoint_name), std::move(instances),
                        std::move(options), std::move(notes), cached_plan));
  const auto prepare = [&]() -> Status {
    CKPT_ASSIGN_OR_RETURN(session->channel_, WorkerChannel::bind(std::move(channel)));
    session->setup_.control.publish_channel(session->setup_.epoch, session->channel_->address());
    CKPT_ASSIGN_OR_RETURN(session->pass_, Pass::prepare(session->setup_, 0, session->recipients_,
                                                        session->channel_->address(), cached_plan));
    return Status();
  };
  if (const Status status = prepare(); !status.is_ok()) return session->fail(status);
  return session;
}

UpdateSession::~UpdateSession() {
  if (!over_) static_cast<void>(fail(aborted("the update was given up")));
  engine_call_.reset();
  setup_.control.end_update(setup_.epoch);
}

void UpdateSession::abort(const Status& cause) { static_cast<void>(fail(cause)); }

Status UpdateSession::fail(const Status& status) {
  if (over_) return status;
  over_ = true;
  setup_.control.abort(setup_.epoch, status.on_rank(setup_.rank));
  // The hub knows which rank was first; what it says is the cause everywhere. Without a hub our own
  // cause stands.
  const Result<bool> told =
      wait_readable(setup_.abort->fd(), Deadline::after_seconds(kCausePatienceSeconds));
  if (!told.is_ok() || !*told) setup_.abort->raise(status.on_rank(setup_.rank));
  const Status cause = setup_.abort->cause();
  std::shared_ptr<void> ring;
  if (pass_) ring = pass_->keep_alive();
  // Before an engine was called, nobody can be on the way to the channel.
  if (channel_ && engine_call_) {
    WorkerChannel::abort(std::move(channel_), cause, setup_.deadline, std::move(ring));
  }
  channel_.reset();
  pass_.reset();
  // Others may have taken theirs into the pass and drop it now.
  if (setup_.kept != nullptr) setup_.kept->release();
  engine_call_.reset();
  setup_.control.withdraw_channel(setup_.epoch);
  return cause;
}

void UpdateSession::tell(int rank, const PassNote& note) {
  if (rank == setup_.rank) {
    notes_->put(rank, note);
  } else {
    setup_.control.send(rank, setup_.epoch, encode(note));
  }
}

void UpdateSession::take_notes(PassAgreement* agreement) {
  for (const auto& [from, note] : notes_->take()) {
    switch (note.kind) {
      case PassNote::Kind::kCallReturned:
        returned_calls_.push_back(from);
        if (agreement != nullptr) agreement->call_returned(from);
        break;
      case PassNote::Kind::kReconnected:
        if (agreement != nullptr && note.pass == pass_number_)
          agreement->reconnected(from, Clock::now());
        break;
      case PassNote::Kind::kNextPass:
      case PassNote::Kind::kEnd:
        decision_ = note;
        break;
    }
  }
}

// Runs on the engine call's thread.
void UpdateSession::call_returned(const Status& status) {
  if (!status.is_ok()) {
    if (!setup_.abort->raised()) setup_.control.abort(setup_.epoch, status.on_rank(setup_.rank));
    return;
  }
  for (const int rank : recipients_) tell(rank, {PassNote::Kind::kCallReturned, 0, {}});
}

Result<WorkerHello> UpdateSession::accept_worker() {
  // An engine that answers "done" although this rank's worker never came would otherwise cost the
  // whole deadline.
  const auto instance =
      std::find_if(instances_.begin(), instances_.end(), [&](const std::vector<int>& members) {
        return std::find(members.begin(), members.end(), setup_.rank) != members.end();
      });
  std::optional<Clock::time_point> answered;
  while (!channel_->connected_again()) {
    if (setup_.abort->raised()) return setup_.abort->cause();
    take_notes(agreement_.get());
    const int speaker = instance->front();
    const bool returned =
        std::find(returned_calls_.begin(), returned_calls_.end(), speaker) != returned_calls_.end();
    // A call that only hands the addresses on says nothing by returning.
    if (returned && options_.engine_answer_means_done && !answered) answered = Clock::now();
    if (answered && Clock::now() > *answered + kConnectPatience) {
      return peer_error(
          concat("the engine answered with success, but no worker has connected to rank ",
                 setup_.rank, " (", channel_->address(),
                 "); does the engine look for the key of this rank's device, and has it the "
                 "worker extension?"));
    }
    if (setup_.deadline.expired()) {
      return deadline_exceeded(
          concat("no worker has connected to rank ", setup_.rank, " (", channel_->address(),
                 ") within the deadline; is the engine up, and was it told to update?"));
    }
    Deadline wake = setup_.deadline;
    if (answered) wake = wake.earlier(Deadline::at(*answered + kConnectPatience));
    wait_for_news(/*for_workers=*/true, wake);
  }
  return channel_->accept(setup_.deadline, *setup_.abort);
}

// Until a worker knocks, a note comes, or the update is over; what it was, the caller finds out.
void UpdateSession::wait_for_news(bool for_workers, Deadline wake) {
  pollfd entries[] = {{notes_->fd(), POLLIN, 0},
                      {setup_.abort->fd(), POLLIN, 0},
                      {for_workers ? channel_->poll_fd() : -1, POLLIN, 0}};
  ::poll(entries, std::size(entries), wake.poll_ms());
}

Status UpdateSession::run_pass(UpdateReport& report) {
  const auto accept_begin = Clock::now();
  CKPT_ASSIGN_OR_RETURN(const WorkerHello hello, accept_worker());
  report.stages.push_back({"connect", seconds_since(accept_begin), 0});
  Pass::Callbacks callbacks;
  callbacks.progress = options_.progress;
  callbacks.first_bucket = [&] {
    if (!first_bucket_seconds_) first_bucket_seconds_ = seconds_since(commit_begin_);
  };
  return pass_->run(*channel_, hello, callbacks, report);
}

Result<PassNote> UpdateSession::next_decision() {
  bool reported = false;
  while (true) {
    take_notes(agreement_.get());
    if (setup_.abort->raised()) return setup_.abort->cause();
    if (decision_) return *std::exchange(decision_, std::nullopt);
    if (setup_.deadline.expired()) {
      return deadline_exceeded(
          "the engine has not answered, although every worker has loaded everything");
    }
    if (!reported && channel_->connected_again()) {
      tell(recipients_.front(), {PassNote::Kind::kReconnected, pass_number_, {}});
      reported = true;
    }
    if (agreement_) {
      if (const auto decided = agreement_->decide(Clock::now())) {
        PassNote note{PassNote::Kind::kEnd, pass_number_ + 1, {}};
        if (const auto* next = std::get_if<PassAgreement::NextPass>(&*decided)) {
          note.kind = PassNote::Kind::kNextPass;
          note.ranks = next->recipients;
        }
        for (const int rank : recipients_) tell(rank, note);
        continue;
      }
    }
    Deadline wake = setup_.deadline.earlier(Deadline::after(std::chrono::seconds(1)));
    if (agreement_ && agreement_->wake_at())
      wake = wake.earlier(Deadline::at(*agreement_->wake_at()));
    wait_for_news(/*for_workers=*/!reported, wake);
  }
}

Status UpdateSession::run_passes(const EngineCall& call, UpdateReport& report) {
  if (is_coordinator()) agreement_ = std::make_unique<PassAgreement>(instances_);
  engine_call_ = EngineCallThread::start(call, pass_->worker_addresses(instances_), setup_.rank,
                                         setup_.deadline, setup_.abort,
                                         [this](const Status& status) { call_returned(status); });
  CKPT_RETURN_IF_ERROR(run_pass(report));
  while (true) {
    pass_.reset();
    CKPT_ASSIGN_OR_RETURN(const PassNote decision, next_decision());
    if (decision.kind == PassNote::Kind::kEnd) return Status();
    pass_number_ = decision.pass;
    if (std::find(decision.ranks.begin(), decision.ranks.end(), setup_.rank) ==
        decision.ranks.end())
      continue;
    log_info("workers of ", decision.ranks.size(), " ranks want the checkpoint again: pass ",
             pass_number_);
    auto pass =
        Pass::prepare(setup_, pass_number_, decision.ranks, channel_->address(), cached_plan_);
    if (!pass) return pass.status().with_context("after the engines were touched");
    pass_ = std::move(*pass);
    CKPT_RETURN_IF_ERROR(run_pass(report));
  }
}

Result<UpdateReport> UpdateSession::commit(const EngineCall& call) {
  commit_begin_ = Clock::now();
  UpdateReport report;
  report.rank = setup_.rank;
  report.epoch = setup_.epoch;
  report.checkpoint_name = checkpoint_name_;
  report.total_tensors = setup_.catalog->tensors().size();
  report.total_bytes = setup_.catalog->total_bytes();
  const Status status = run_passes(call, report);
  if (!status.is_ok()) return fail(status);
  over_ = true;
  engine_call_.reset();
  setup_.control.withdraw_channel(setup_.epoch);
  report.context_bytes = setup_.device.context_bytes();
  report.streams_made = setup_.device.streams_made() - streams_before_;
  report.first_bucket_seconds = first_bucket_seconds_.value_or(0);
  report.commit_seconds = seconds_since(commit_begin_);
  report.update_seconds = seconds_since(begin_);
  return report;
}

}  // namespace ckpt
