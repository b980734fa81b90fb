// The rank's side of the stock wire: docs/wire-stock.md.
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "worker/gate.h"
#include "worker/lost_worker.h"
#include "worker/stock_messages.h"
#include "worker/stock_session.h"
#include "worker/wait.h"
#include "worker/wire.h"

namespace ckpt {
namespace {

using Bytes = std::vector<std::byte>;

/// What a question is about, for errors: "open the ring", and what to look at when the worker
/// leaves without a word.
struct Step {
  std::string doing;
  std::string_view hint;
};

constexpr std::string_view kHandleHint =
    "it raised before it could answer; see its log and the engine's answer";
constexpr std::string_view kBucketHint =
    "a dtype that its torch does not know ends it like this; see its log and the engine's answer";
constexpr std::string_view kFinishHint =
    "its post-load hook raised; see its log and the engine's answer";

class StockWire final : public WorkerWire {
 public:
  StockWire(ChannelOptions options, Gate gate, PollSet poll_set)
      : options_(std::move(options)), gate_(std::move(gate)), poll_set_(std::move(poll_set)) {}

  Status open() { return poll_set_.add(gate_.fd()); }

  int poll_fd() const override { return poll_set_.fd(); }
  bool knocking() override { return session_ == nullptr && readable_now(gate_.fd()); }
  Result<std::optional<WorkerHello>> accept(Deadline deadline, AbortSignal& abort) override;
  Status open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) override;
  int window() const override { return 1; }
  Status announce(std::uint32_t bucket, std::span<const RingEntry> entries) override;
  Result<BucketAck> wait_ack(Deadline deadline, AbortSignal& abort) override;
  Status release(Deadline deadline, AbortSignal& abort) override;
  Status finish(Deadline deadline, AbortSignal& abort) override;
  void start_abort(const Status& cause) override;
  AbortProgress abort_step() override;
  void cut() override;

 private:
  /// True when a worker was let in.
  Result<bool> let_in();
  Status end_session();
  /// Of a session that ends before its worker has left: its socket connects again when it goes on.
  void remember_stopped();
  /// True while somebody who has stopped answering may go on.
  bool any_stopped();
  Status ask(const Bytes& question);
  /// Waits for the answer to what was asked last: empty is success, text the worker's error.
  Status expect_answer(const Step& step, Deadline deadline, AbortSignal& abort);
  Status ask_and_wait(const Bytes& question, const Step& step, Deadline deadline,
                      AbortSignal& abort);
  Status lost(const Step& step) const;
  std::string worker_text() const;

  const ChannelOptions options_;
  Gate gate_;
  PollSet poll_set_;  ///< the gate while nobody is in, else the session
  std::unique_ptr<StockSession> session_;
  /// Of the worker that has finished. ZeroMQ connects again when we close it before the worker has
  /// closed its socket, and would look like another worker.
  UniqueFd finished_;
  BucketAck announced_;
  Status abort_cause_;
  Deadline handshake_ = Deadline::after_seconds(0);  ///< of this session
  std::vector<LostWorker> stopped_;                  ///< during an abort
  bool told_ = false;    ///< the exception is on its way to the worker of this session
  bool served_ = false;  ///< a worker has gone since the abort
};

std::string StockWire::worker_text() const {
  return concat("the worker of rank ", options_.rank, " (stock wire, pid ",
                session_ != nullptr ? session_->pid() : 0, ")");
}

Result<bool> StockWire::let_in() {
  CKPT_ASSIGN_OR_RETURN(std::optional<GateConnection> connection, gate_.accept());
  if (!connection) return false;
  // The closed listener has left the set by itself.
  CKPT_ASSIGN_OR_RETURN(
      session_, StockSession::start(*std::move(connection), options_.heartbeat_timeout_seconds));
  CKPT_RETURN_IF_ERROR(poll_set_.add(session_->poll_fd()));
  told_ = false;
  handshake_ = Deadline::after_seconds(options_.handshake_timeout_seconds);
  return true;
}

Status StockWire::end_session() {
  session_.reset();
  CKPT_RETURN_IF_ERROR(gate_.reopen());
  return poll_set_.add(gate_.fd());
}

Result<std::optional<WorkerHello>> StockWire::accept(Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(const bool there, let_in());
  if (!there) return std::optional<WorkerHello>();
  while (true) {
    if (abort.raised()) return abort.cause();
    session_->pump();
    if (session_->ready()) return std::optional(WorkerHello{Wire::kStock, session_->pid(), ""});
    if (session_->lost()) {
      CKPT_RETURN_IF_ERROR(end_session());
      return std::optional<WorkerHello>();
    }
    CKPT_ASSIGN_OR_RETURN(const Wake wake,
                          wait_for_any({poll_fd()}, deadline.earlier(handshake_), &abort));
    if (wake != Wake::kExpired) continue;
    const std::string what =
        concat(worker_text(), " has connected, but does not speak ZeroMQ; what is it?");
    if (deadline.expired()) return deadline_exceeded(what);
    // A worker that was refused meanwhile tries again by itself.
    log_warning(what);
    CKPT_RETURN_IF_ERROR(end_session());
    return std::optional<WorkerHello>();
  }
}

Status StockWire::lost(const Step& step) const {
  return peer_lost(concat(worker_text(), " ", session_->how_lost(), " when it was to ", step.doing,
                          ": ", step.hint));
}

Status StockWire::ask(const Bytes& question) {
  session_->pump();
  if (session_->lost()) return lost({"be asked", kHandleHint});
  return session_->ask(question).with_context(worker_text());
}

Status StockWire::expect_answer(const Step& step, Deadline deadline, AbortSignal& abort) {
  while (true) {
    if (abort.raised()) return abort.cause();
    session_->pump();
    if (const auto answer = session_->take_answer()) {
      if (answer->empty()) return Status::ok();
      log_info(worker_text(), " says: ", *answer);
      return peer_error(
          concat(worker_text(), " failed to ", step.doing, ": ", worker_error_text(*answer)));
    }
    if (session_->lost()) return lost(step);
    CKPT_ASSIGN_OR_RETURN(const Wake wake, wait_for_any({poll_fd()}, deadline, &abort));
    if (wake == Wake::kExpired) {
      return deadline_exceeded(concat(worker_text(), " was to ", step.doing,
                                      " and has not answered in time; is it stuck, or the timeout "
                                      "too short?"));
    }
  }
}

Status StockWire::ask_and_wait(const Bytes& question, const Step& step, Deadline deadline,
                               AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(ask(question));
  return expect_answer(step, deadline, abort);
}

Status StockWire::open_ring(const BufferHandle& ring, Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(const Bytes question, pickle_ring(ring));
  return ask_and_wait(question, {"open the ring", kHandleHint}, deadline, abort);
}

Status StockWire::announce(std::uint32_t bucket, std::span<const RingEntry> entries) {
  CKPT_ASSIGN_OR_RETURN(const Bytes question, pickle_bucket(entries));
  CKPT_RETURN_IF_ERROR(ask(question));
  announced_ = {bucket, entries.size(), 0, 0, 0, 0};
  for (const RingEntry& entry : entries) announced_.bytes += entry.bytes;
  return Status::ok();
}

Result<BucketAck> StockWire::wait_ack(Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(
      expect_answer({concat("load bucket ", announced_.bucket), kBucketHint}, deadline, abort));
  return announced_;
}

Status StockWire::release(Deadline deadline, AbortSignal& abort) {
  return ask_and_wait(pickle_none(), {"release the ring", kHandleHint}, deadline, abort);
}

Status StockWire::finish(Deadline deadline, AbortSignal& abort) {
  CKPT_RETURN_IF_ERROR(
      ask_and_wait(pickle_none(), {"finish the update", kFinishHint}, deadline, abort));
  finished_ = session_->part();
  return end_session();
}

void StockWire::remember_stopped() {
  const std::int64_t pid = session_->pid();
  stopped_.emplace_back(pid, session_->part(), options_.late_worker_seconds);
}

bool StockWire::any_stopped() {
  const auto gone = std::erase_if(stopped_, [](LostWorker& worker) { return !worker.may_go_on(); });
  served_ = served_ || gone > 0;
  return !stopped_.empty();
}

void StockWire::start_abort(const Status& cause) {
  abort_cause_ = cause;
  abort_step();
}

WorkerWire::AbortProgress StockWire::abort_step() {
  // An error here leaves the worker to the engine's deadline; there is nobody to tell.
  if (session_ == nullptr) (void)let_in();
  const bool stopped = any_stopped();
  if (session_ == nullptr) return {false, stopped, served_};
  session_->pump();
  (void)session_->take_answer();
  if (session_->ready() && !session_->owed() && !told_) {
    told_ = session_->ask(pickle_error(abort_cause_.to_string())).is_ok();
    // One that had stopped has come back to its socket, and is here now. Those of other pid
    // namespaces are all called 0.
    std::erase_if(stopped_, [&](const LostWorker& worker) {
      return told_ && worker.pid() > 0 && worker.pid() == session_->pid();
    });
  }
  const bool stranger = !session_->ready() && handshake_.expired();
  if (!session_->lost() && !stranger) return {true, stopped, served_};
  if (session_->lost() && !session_->left()) {
    remember_stopped();
  } else {
    served_ = served_ || !stranger;
  }
  (void)end_session();
  return {false, any_stopped(), served_};
}

void StockWire::cut() {
  if (session_ == nullptr) return;
  remember_stopped();  // busy or stopped, nobody knows
  (void)end_session();
}

}  // namespace

Result<std::unique_ptr<WorkerWire>> bind_stock_wire(const ChannelOptions& options,
                                                    const std::string& address) {
  CKPT_ASSIGN_OR_RETURN(Gate gate, Gate::open(address));
  CKPT_ASSIGN_OR_RETURN(PollSet poll_set, PollSet::create());
  auto wire = std::make_unique<StockWire>(options, std::move(gate), std::move(poll_set));
  CKPT_RETURN_IF_ERROR(wire->open());
  return std::unique_ptr<WorkerWire>(std::move(wire));
}

}  // namespace ckpt
