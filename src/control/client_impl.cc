#include "control/client_impl.h"

#include <utility>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt {

using control::Message;
using control::Payload;

namespace {

/// After its deadline a call asks the hub who was missing, and waits so long for the answer.
constexpr std::chrono::milliseconds kAskWhoIsMissing{200};
/// How long leave() waits for the hub.
constexpr std::chrono::milliseconds kFarewell{1000};

JoinOptions completed(JoinOptions options) {
  if (options.host_id.empty()) options.host_id = host_id();
  return options;
}

}  // namespace

ControlClient::Impl::Impl(JoinOptions options) : options_(completed(std::move(options))) {}

ControlClient::Impl::~Impl() { leave(); }

Status ControlClient::Impl::join(const HostPort& hub, Deadline::Clock::duration patience,
                                 AbortSignal& abort) {
  patience_ = std::chrono::floor<std::chrono::milliseconds>(patience);
  io_ = std::thread([this, hub] { run(hub); });
  const int key = abort.subscribe([this](const Status& cause) { close_with(cause); });
  const Status joined = wait_until_joined(patience);
  abort.unsubscribe(key);
  return joined;
}

Status ControlClient::Impl::wait_until_joined(Deadline::Clock::duration patience) {
  std::unique_lock lock(mutex_);
  const bool answered = stage_changed_.wait_until(lock, Deadline::after(patience).when(),
                                                  [this] { return stage_ != Stage::kConnecting; });
  if (!answered) {
    return unavailable(concat(options_.hub.to_string(),
                              " accepts connections, but no hub answers "
                              "there: check the port"));
  }
  // The hub ends this: the job is complete, or nobody has come for `patience`. If it falls silent,
  // keep_alive() does, as later.
  stage_changed_.wait(lock,
                      [this] { return stage_ == Stage::kJoined || stage_ == Stage::kClosed; });
  return state_;
}

Status ControlClient::Impl::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void ControlClient::Impl::leave() {
  const std::lock_guard leaving(leave_mutex_);
  if (!io_.joinable()) return;
  if (close_with(failed_precondition(concat("rank ", options_.rank, " has left the job")))) {
    std::unique_lock lock(mutex_);
    push(control::Leave{}, {}, false);
    stage_changed_.wait_for(lock, kFarewell, [this] { return farewell_heard_; });
  }
  stopping_ = true;
  wake_.set();
  io_.join();
}

bool ControlClient::Impl::close_with(const Status& cause) {
  std::map<std::uint64_t, LiveEpoch> epochs;
  {
    const std::lock_guard lock(mutex_);
    if (stage_ == Stage::kClosed) return false;
    stage_ = Stage::kClosed;
    state_ = cause;
    for (auto& [number, pending] : std::exchange(pending_, {})) finish(*pending, cause);
    epochs.swap(epochs_);
    outbox_.clear();
    stage_changed_.notify_all();
  }
  for (const auto& [number, epoch] : epochs) {
    for (const auto& signal : epoch.signals) signal->raise(cause);
  }
  return true;
}

void ControlClient::Impl::finish(Pending& pending, Status status) {
  if (pending.done) return;
  pending.done = true;
  pending.status = std::move(status);
  pending.changed.notify_all();
}

void ControlClient::Impl::push(Message message, std::vector<Payload> payloads, bool bulk) {
  const bool idle = outbox_.empty();
  outbox_.push_back({{std::move(message), std::move(payloads)}, bulk});
  if (idle) wake_.set();
}

void ControlClient::Impl::post(Message message, std::vector<Payload> payloads) {
  const std::lock_guard lock(mutex_);
  if (stage_ == Stage::kJoined) push(std::move(message), std::move(payloads), false);
}

Result<ControlClient::Impl::Answer> ControlClient::Impl::call(const Request& request,
                                                              std::vector<Payload> payloads,
                                                              Deadline deadline,
                                                              AbortSignal* abort) {
  if (in_callback()) {
    return failed_precondition(
        "a call that waits was made inside a callback of the control client");
  }
  if (abort != nullptr && abort->raised()) return abort->cause();
  const auto pending = std::make_shared<Pending>();
  const std::size_t bytes = control::payload_bytes(payloads);
  if (bytes > control::kMaxPayload) {
    return invalid_argument(
        concat(format_bytes(bytes), " are too much for the control plane, which takes ",
               format_bytes(control::kMaxPayload), " at once: send it in pieces"));
  }
  const bool bulk = bytes > control::kMaxControlPayload;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    CKPT_RETURN_IF_ERROR(state_);
    number = next_number_++;
    pending_.emplace(number, pending);
    Message message = request(number);
    const auto* contribute = std::get_if<control::Contribute>(&message);
    if (contribute != nullptr && contribute->call == control::Call::kBeginUpdate) {
      begins_.insert(number);
    }
    push(std::move(message), std::move(payloads), bulk);
  }
  int subscription = -1;
  if (abort != nullptr) {
    subscription = abort->subscribe([this, pending](const Status& cause) {
      const std::lock_guard lock(mutex_);
      if (!pending->done) pending->ended_here = true;
      finish(*pending, cause);
    });
  }
  {
    std::unique_lock lock(mutex_);
    await(lock, *pending, number, bulk, deadline);
  }
  // Not under the mutex: it waits for a running callback, which takes it.
  if (abort != nullptr) abort->unsubscribe(subscription);
  CKPT_RETURN_IF_ERROR(pending->status);
  return std::move(pending->answer);
}

void ControlClient::Impl::await(std::unique_lock<std::mutex>& lock, Pending& pending,
                                std::uint64_t number, bool bulk, Deadline deadline) {
  const auto done = [&pending] { return pending.done; };
  // A withdrawal follows its request on the same connection, so that it cannot overtake it.
  if (!pending.changed.wait_until(lock, deadline.when(), done)) {
    push(control::Withdraw{number, deadline_exceeded("the deadline passed")}, {}, bulk);
    if (!pending.changed.wait_for(lock, kAskWhoIsMissing, done)) {
      finish(pending, deadline_exceeded(concat("the deadline passed, and the hub at ",
                                               options_.hub.to_string(), " does not answer")));
    }
  } else if (pending.ended_here && stage_ == Stage::kJoined) {
    push(control::Withdraw{number, pending.status}, {}, bulk);
  }
  pending_.erase(number);
}

void ControlClient::Impl::end_update(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  if (epochs_.erase(epoch) > 0) push(control::EndUpdate{epoch}, {}, false);
}

void ControlClient::Impl::watch(std::uint64_t epoch, std::shared_ptr<AbortSignal> signal) {
  Status cause;
  {
    const std::lock_guard lock(mutex_);
    const auto found = epochs_.find(epoch);
    if (!state_.is_ok()) {
      cause = state_;
    } else if (found == epochs_.end()) {
      cause = aborted(concat("update ", epoch, " is over on rank ", options_.rank,
                             ", or it never began there"));
    } else {
      cause = found->second.cause;
      if (cause.is_ok()) found->second.signals.push_back(signal);
    }
  }
  if (!cause.is_ok()) signal->raise(cause);
}

void ControlClient::Impl::set_message_handler(MessageHandler handler) {
  const std::lock_guard running(handler_mutex_);
  message_handler_ = std::move(handler);
}

void ControlClient::Impl::set_peer_lost_handler(PeerLostHandler handler) {
  const std::lock_guard running(handler_mutex_);
  peer_lost_handler_ = std::move(handler);
}

}  // namespace ckpt
