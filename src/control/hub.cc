#include "control/hub.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/host.h"
#include "base/strings.h"
#include "control/hub_core.h"
#include "control/socket.h"

namespace ckpt {

using control::HubCore;
using control::Socket;
using control::SocketContext;
using control::SocketEvent;
using control::TimePoint;

namespace {

/// Messages handled before the clock is looked at again.
constexpr int kMessagesPerRound = 256;
/// After a connection closed, ZeroMQ needs a moment until sending to it fails.
constexpr std::chrono::milliseconds kProbeAgain[] = {
    std::chrono::milliseconds(2), std::chrono::milliseconds(10), std::chrono::milliseconds(50)};

constexpr std::chrono::milliseconds kShortestTimeout{10};

Status check(const HubOptions& options) {
  if (options.heartbeat_interval.count() >= 1 && options.heartbeat_timeout >= kShortestTimeout) {
    return Status::ok();
  }
  return invalid_argument(concat("hub: a heartbeat timeout of ", options.heartbeat_timeout.count(),
                                 " ms with beats every ", options.heartbeat_interval.count(),
                                 " ms is too short; give at least ", kShortestTimeout.count(),
                                 " and 1"));
}

std::chrono::milliseconds interval(const HubOptions& options) {
  return std::min(options.heartbeat_interval, options.heartbeat_timeout / 5);
}

HubCore::Options core_options(const HubOptions& options) {
  return {.terms = {options.job, options.world_size, options.secret},
          .heartbeat_interval = interval(options),
          .heartbeat_timeout = options.heartbeat_timeout,
          .new_session = [] { return random_id() + random_id(); },
          .on_lost = options.on_lost};
}

/// Where ranks of this host reach what listens on `bind_host`.
std::string reachable(const std::string& bind_host) {
  if (bind_host.empty() || bind_host == "0.0.0.0" || bind_host == "*") return "127.0.0.1";
  return bind_host == "::" ? "::1" : bind_host;
}

}  // namespace

class Hub::Impl {
 public:
  Impl(const HubOptions& options, std::unique_ptr<SocketContext> context, Socket socket)
      : address_{reachable(options.bind_host), socket.port()},
        interval_(interval(options)),
        context_(std::move(context)),
        socket_(std::move(socket)),
        core_(core_options(options)),
        thread_([this] { run(); }) {}

  ~Impl() {
    stopping_ = true;
    stop_.set();
    thread_.join();
  }

  HostPort address() const { return address_; }

  Status wait_until_empty(Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (became_empty_.wait_until(lock, deadline.when(), [this] { return empty_; })) {
      return Status::ok();
    }
    return deadline_exceeded(
        concat("hub at ", address_.to_string(), ": some ranks have not left yet"));
  }

 private:
  void run() {
    control::block_signals();
    TimePoint now = Deadline::Clock::now();
    while (!stopping_) {
      const TimePoint planned = std::max(now, next_wake());
      Socket::wait({&socket_}, stop_.fd(), Deadline::at(planned));
      now = Deadline::Clock::now();
      if (now - planned > interval_) core_.excuse(now - planned);
      receive(now);
      find_closed(now);
      if (now >= core_.next_tick()) core_.tick(now);
      flush();
      publish_empty();
    }
  }

  TimePoint next_wake() const {
    return probes_left_ > 0 ? std::min(next_probe_, core_.next_tick()) : core_.next_tick();
  }

  void find_closed(TimePoint now) {
    constexpr int kProbes = std::size(kProbeAgain);
    bool closed = false;
    while (const auto event = socket_.next_event()) closed |= *event == SocketEvent::kDisconnected;
    if (closed) {
      probes_left_ = kProbes;
    } else if (probes_left_ > 0 && now >= next_probe_) {
      --probes_left_;
    } else {
      return;
    }
    core_.probe();
    if (probes_left_ > 0) next_probe_ = now + kProbeAgain[kProbes - probes_left_];
  }

  void receive(TimePoint now) {
    for (int i = 0; i < kMessagesPerRound; ++i) {
      auto incoming = socket_.receive();
      if (!incoming) return;
      if (incoming->envelope) {
        if (core_.claims_held_rank(incoming->envelope->message)) {
          // Its former process may have died a moment ago.
          core_.probe();
          flush();
        }
        core_.receive(incoming->route, std::move(incoming->envelope).value(), now);
      } else {
        core_.receive_garbage(incoming->route, incoming->envelope.status());
      }
      flush();
    }
  }

  /// A send that finds a closed connection makes news of its own: until nothing is left.
  void flush() {
    for (auto batch = core_.take_outgoing(); !batch.empty(); batch = core_.take_outgoing()) {
      for (const control::Outgoing& out : batch) {
        if (!socket_.send(out.route, out.envelope)) core_.disconnected(out.route);
      }
    }
  }

  void publish_empty() {
    const bool empty = core_.empty();
    const std::lock_guard lock(mutex_);
    if (empty != empty_) {
      empty_ = empty;
      became_empty_.notify_all();
    }
  }

  const HostPort address_;
  const std::chrono::milliseconds interval_;
  std::atomic<bool> stopping_{false};
  EventFd stop_;

  std::mutex mutex_;
  std::condition_variable became_empty_;
  bool empty_ = false;  // guarded by mutex_

  // The thread's own.
  std::unique_ptr<SocketContext> context_;
  Socket socket_;
  HubCore core_;
  int probes_left_ = 0;
  TimePoint next_probe_{};

  std::thread thread_;  // last: it uses all of the above
};

Result<std::unique_ptr<Hub>> Hub::start(HubOptions options) {
  CKPT_RETURN_IF_ERROR(check(options));
  auto context = std::make_unique<SocketContext>(2);
  CKPT_ASSIGN_OR_RETURN(Socket socket,
                        Socket::listen(*context, HostPort{options.bind_host, options.port}));
  auto impl = std::make_unique<Impl>(options, std::move(context), std::move(socket));
  return std::unique_ptr<Hub>(new Hub(std::move(impl)));
}

Hub::Hub(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Hub::~Hub() = default;
HostPort Hub::address() const { return impl_->address(); }
Status Hub::wait_until_empty(Deadline deadline) { return impl_->wait_until_empty(deadline); }

}  // namespace ckpt
