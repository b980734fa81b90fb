// The I/O thread of ControlClient.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "base/strings.h"
#include "control/client_impl.h"

namespace ckpt {

using control::Envelope;
using control::Message;
using control::Payload;
using control::Socket;
using control::SocketContext;
using control::SocketEvent;

namespace {

/// The client whose I/O thread this is.
thread_local const void* io_thread_of = nullptr;

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

bool ControlClient::Impl::in_callback() const { return io_thread_of == this; }

void ControlClient::Impl::run(const HostPort& hub) {
  io_thread_of = this;
  control::block_signals();
  hub_ = hub;
  context_ = std::make_unique<SocketContext>(1);
  // Unqueued: a Join must not wait for a connection of another hub than the one that hears it.
  Result<Socket> socket = Socket::connect(*context_, hub_, /*queue=*/false);
  if (!socket) return void(close_with(socket.status()));
  control_.emplace(std::move(socket).value());
  TimePoint now = Deadline::Clock::now();
  while (!stopping_ && !hub_lost_) {
    const TimePoint planned = next_wake(now);
    Socket::wait({&*control_, bulk_ ? &*bulk_ : nullptr}, wake_.fd(), Deadline::at(planned));
    now = Deadline::Clock::now();
    // This process stood still (a debugger, SIGSTOP): the hub's silence meanwhile proves nothing.
    if (now - planned > interval_) hub_heard_ += now - planned;
    wake_.clear();
    flush();
    receive(*control_, now);
    if (bulk_) receive(*bulk_, now);
    follow_connections();
    keep_alive(now);
  }
  bulk_.reset();
  control_.reset();
}

ControlClient::Impl::TimePoint ControlClient::Impl::next_wake(TimePoint now) const {
  if (interval_.count() == 0) return now + std::chrono::hours(1);
  return std::max(now, std::min(next_beat_, hub_heard_ + timeout_));
}

void ControlClient::Impl::flush() {
  std::vector<Post> posts;
  {
    const std::lock_guard lock(mutex_);
    posts.swap(outbox_);
  }
  for (const Post& post : posts) {
    Socket& socket = post.bulk && bulk_ ? *bulk_ : *control_;
    // It fails when the connection has just closed, which follow_connections() is about to hear.
    socket.send({}, post.envelope);
  }
}

void ControlClient::Impl::follow_connections() {
  while (const auto event = control_->next_event()) {
    if (*event == SocketEvent::kConnected && interval_.count() == 0) send_join();
    if (*event == SocketEvent::kDisconnected && interval_.count() != 0) {
      return lose_hub("its connection closed");
    }
  }
  while (bulk_) {
    const auto event = bulk_->next_event();
    if (!event) break;
    if (*event == SocketEvent::kDisconnected) return lose_hub("its second connection closed");
  }
}

void ControlClient::Impl::send_join() {
  control::Join join;
  join.job = options_.job;
  join.secret = options_.secret;
  join.rank = options_.rank;
  join.world_size = options_.world_size;
  join.host_id = options_.host_id;
  join.host_name = host_name();
  join.process = static_cast<std::uint32_t>(getpid());
  join.patience_ms = static_cast<std::uint64_t>(patience_.count());
  control_->send({}, {join, {}});
}

void ControlClient::Impl::receive(Socket& socket, TimePoint now) {
  while (!hub_lost_) {
    auto incoming = socket.receive();
    if (!incoming) return;
    hub_heard_ = now;
    if (!incoming->envelope) {
      log_warning("control: rank ", options_.rank,
                  " dropped a message of the hub: ", incoming->envelope.status().message());
      continue;
    }
    handle(std::move(incoming->envelope).value());
  }
}

void ControlClient::Impl::handle(Envelope envelope) {
  std::visit(Overloaded{
                 [&](const control::Welcome& m) { on_welcome(m); },
                 [&](const control::Ready&) { set_stage(Stage::kJoined); },
                 [&](const control::Refused& m) {
                   hub_lost_ = true;
                   close_with(m.cause);
                 },
                 [&](const control::Left&) {
                   const std::lock_guard lock(mutex_);
                   farewell_heard_ = true;
                   stage_changed_.notify_all();
                 },
                 [&](const control::Outcome& m) { on_outcome(m, std::move(envelope.payloads)); },
                 [&](const control::Abort& m) { on_abort(m); },
                 [&](const control::Relay& m) { on_relay(m, envelope.payloads); },
                 [&](const control::Lost& m) { on_lost(m); },
                 [](const auto&) {},  // a beat, or something that a newer hub says
             },
             envelope.message);
}

void ControlClient::Impl::on_welcome(const control::Welcome& welcome) {
  if (interval_.count() != 0) return;
  interval_ = std::chrono::milliseconds(std::max(1U, welcome.interval_ms));
  timeout_ = std::chrono::milliseconds(std::max(2U, welcome.timeout_ms));
  next_beat_ = hub_heard_ + interval_;
  Result<Socket> socket = Socket::connect(*context_, hub_, /*queue=*/true);
  if (!socket) return lose_hub(socket.status().message());
  bulk_.emplace(std::move(socket).value());
  bulk_->send({}, {control::Attach{welcome.session}, {}});
  set_stage(Stage::kWelcomed);
}

void ControlClient::Impl::set_stage(Stage stage) {
  const std::lock_guard lock(mutex_);
  if (stage_ == Stage::kClosed) return;
  stage_ = stage;
  stage_changed_.notify_all();
}

void ControlClient::Impl::on_outcome(const control::Outcome& outcome,
                                     std::vector<Payload> payloads) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(outcome.request);
  const bool wanted = found != pending_.end() && !found->second->done;
  if (begins_.erase(outcome.request) > 0 && outcome.cause.is_ok()) {
    if (wanted) {
      epochs_.try_emplace(outcome.number);
    } else if (stage_ == Stage::kJoined) {
      // The caller has given up: an update that this rank is not in must not go on.
      push(control::Abort{outcome.number,
                          aborted(concat("rank ", options_.rank,
                                         " gave up waiting just before the update began"))},
           {}, false);
      push(control::EndUpdate{outcome.number}, {}, false);
    }
  }
  if (!wanted) return;
  found->second->answer = {outcome.number, std::move(payloads)};
  finish(*found->second, outcome.cause);
}

void ControlClient::Impl::on_abort(const control::Abort& abort) {
  std::vector<std::shared_ptr<AbortSignal>> signals;
  {
    const std::lock_guard lock(mutex_);
    const auto found = epochs_.find(abort.epoch);
    if (found == epochs_.end() || !found->second.cause.is_ok()) return;
    found->second.cause = abort.cause;
    signals.swap(found->second.signals);
  }
  for (const auto& signal : signals) signal->raise(abort.cause);
}

void ControlClient::Impl::on_relay(const control::Relay& relay,
                                   const std::vector<Payload>& payloads) {
  {
    const std::lock_guard lock(mutex_);
    if (relay.epoch != 0 && !epochs_.contains(relay.epoch)) return;
  }
  const std::lock_guard running(handler_mutex_);
  if (!message_handler_) return;
  message_handler_(relay.peer, relay.epoch,
                   payloads.empty() ? std::span<const std::byte>() : payloads.front().bytes());
}

void ControlClient::Impl::on_lost(const control::Lost& lost) {
  PeerLost news{lost.rank, lost.host_id, {}, lost.cause};
  for (const control::Channel& channel : lost.channels) {
    news.channels.push_back({channel.epoch, channel.address});
  }
  const std::lock_guard running(handler_mutex_);
  if (peer_lost_handler_) peer_lost_handler_(news);
}

void ControlClient::Impl::keep_alive(TimePoint now) {
  if (interval_.count() == 0 || hub_lost_) return;
  if (now - hub_heard_ >= timeout_) {
    return lose_hub(concat("silent for ", timeout_.count(), " ms"));
  }
  if (now < next_beat_) return;
  control_->send({}, {control::Pulse{}, {}});
  next_beat_ = now + interval_;
}

void ControlClient::Impl::lose_hub(std::string_view how) {
  hub_lost_ = true;
  if (options_.hub_is_rank_0) {
    close_with(
        peer_lost(concat("rank 0, which runs the hub at ", options_.hub.to_string(),
                         ", is lost: ", how, "; see that process's log, then start the job again"))
            .on_rank(0));
  } else {
    close_with(unavailable(concat("rank ", options_.rank, " has lost the hub at ",
                                  options_.hub.to_string(), ": ", how,
                                  "; look whether the process that runs it (checkpoint-engine hub, "
                                  "or the launcher) is alive, then join again")));
  }
  const std::lock_guard lock(mutex_);
  farewell_heard_ = true;
  stage_changed_.notify_all();
}

}  // namespace ckpt
