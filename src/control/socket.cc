#include "control/socket.h"

#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt::control {
namespace {

/// Guards against the length field of a stranger. A frame is one payload, or a head of less.
constexpr auto kMaxFrameBytes = static_cast<std::int64_t>(kMaxPayload);
/// Payloads up to here are copied into the message: cheaper than counting references.
constexpr std::size_t kCopyBytes = 1024;

bool is_v6(const std::string& host) { return host.find(':') != std::string::npos; }

std::string endpoint(const HostPort& address) {
  const std::string host = address.host.empty() ? "*" : address.host;
  return concat("tcp://", HostPort{host, address.port}.to_string());
}

zmq::message_t to_frame(const Payload& payload) {
  const auto bytes = payload.bytes();
  if (bytes.size() <= kCopyBytes) return zmq::message_t(bytes.data(), bytes.size());
  auto* owner = new Payload(payload);
  // ZeroMQ does not write to what it sends.
  return zmq::message_t(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void*, void* hint) { delete static_cast<Payload*>(hint); }, owner);
}

Payload to_payload(zmq::message_t frame) {
  auto owner = std::make_shared<const zmq::message_t>(std::move(frame));
  const auto* data = static_cast<const std::byte*>(owner->data());
  const std::size_t size = owner->size();
  return {std::move(owner), {data, size}};
}

/// Runs `transfer`, a send or receive that does not wait, again when a signal ended it.
template <typename Transfer>
auto uninterrupted(const Transfer& transfer) {
  while (true) {
    try {
      return transfer();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

bool receive_frame(zmq::socket_t& socket, zmq::message_t& frame) {
  return uninterrupted([&] { return socket.recv(frame, zmq::recv_flags::dontwait).has_value(); });
}

}  // namespace

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

struct SocketContext::State {
  zmq::context_t context;
};

SocketContext::SocketContext(int io_threads)
    : state_(new State{zmq::context_t(io_threads, 1 << 16)}) {}
SocketContext::~SocketContext() = default;

struct Socket::State {
  zmq::socket_t socket;
  zmq::socket_t monitor;
  bool router = false;
  // ZeroMQ's descriptors report changes only, and any send may swallow a change of the receiving
  // side. So after a send the socket is asked before the descriptor is trusted, and what is found
  // is remembered until receive() has drained it. (zmq_poll does the same with about four times the
  // system calls.)
  bool sent = true;
  bool may_have_message = false;
  bool may_have_event = true;
  int fd = -1;
  int monitor_fd = -1;

  State(zmq::context_t& context, zmq::socket_type type, bool v6)
      : socket(context, type),
        monitor(context, zmq::socket_type::pair),
        router(type == zmq::socket_type::router) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::sndhwm, 0);
    socket.set(zmq::sockopt::ipv6, v6);
    socket.set(zmq::sockopt::maxmsgsize, kMaxFrameBytes);
    // Half-open connections to hosts that are gone; ranks are watched by heartbeats long before.
    socket.set(zmq::sockopt::tcp_keepalive, 1);
    socket.set(zmq::sockopt::tcp_keepalive_idle, 30);
    socket.set(zmq::sockopt::tcp_keepalive_intvl, 10);
    socket.set(zmq::sockopt::tcp_keepalive_cnt, 3);
    const std::string events = concat("inproc://events-", random_id());
    if (zmq_socket_monitor(socket.handle(), events.c_str(),
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0) {
      throw zmq::error_t();
    }
    monitor.set(zmq::sockopt::linger, 0);
    monitor.connect(events);
    fd = socket.get(zmq::sockopt::fd);
    monitor_fd = monitor.get(zmq::sockopt::fd);
  }
  bool ready() {
    if (std::exchange(sent, false)) {
      may_have_message |=
          (uninterrupted([this] { return socket.get(zmq::sockopt::events); }) & ZMQ_POLLIN) != 0;
    }
    return may_have_message || may_have_event;
  }
  ~State() { zmq_socket_monitor(socket.handle(), nullptr, 0); }
};

Socket::Socket(std::unique_ptr<State> state) : state_(std::move(state)) {}
Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;
Socket::~Socket() = default;

Result<Socket> Socket::listen(SocketContext& context, const HostPort& address) {
  try {
    auto state = std::make_unique<State>(context.state_->context, zmq::socket_type::router,
                                         address.host.empty() || is_v6(address.host));
    state->socket.set(zmq::sockopt::router_mandatory, true);
    state->socket.set(zmq::sockopt::backlog, 4096);
    state->socket.bind(endpoint(address));
    return Socket(std::move(state));
  } catch (const zmq::error_t& error) {
    return unavailable(concat("cannot listen on ", endpoint(address), ": ", error.what(),
                              "; choose a free port, and an address of this host"));
  }
}

Result<Socket> Socket::connect(SocketContext& context, const HostPort& address, bool queue) {
  try {
    auto state = std::make_unique<State>(context.state_->context, zmq::socket_type::dealer,
                                         is_v6(address.host));
    state->socket.set(zmq::sockopt::immediate, !queue);
    state->socket.set(zmq::sockopt::reconnect_ivl, 50);
    state->socket.set(zmq::sockopt::reconnect_ivl_max, 500);
    state->socket.connect(endpoint(address));
    return Socket(std::move(state));
  } catch (const zmq::error_t& error) {
    return unavailable(concat("cannot connect to ", endpoint(address), ": ", error.what()));
  }
}

int Socket::port() const {
  const std::string bound = state_->socket.get(zmq::sockopt::last_endpoint);
  const Result<std::int64_t> port = parse_int(bound.substr(bound.rfind(':') + 1));
  return port ? static_cast<int>(*port) : 0;
}

bool Socket::send(const Route& route, const Envelope& envelope) {
  state_->sent = true;
  const auto send_frame = [this](zmq::message_t frame, bool more) {
    auto flags = zmq::send_flags::dontwait;
    if (more) flags = flags | zmq::send_flags::sndmore;
    return uninterrupted([&] { return state_->socket.send(frame, flags).has_value(); });
  };
  const std::vector<std::byte> head = encode(envelope.message);
  try {
    if (state_->router && !send_frame(zmq::message_t(route.data(), route.size()), true)) {
      return false;
    }
    std::size_t left = envelope.payloads.size();
    if (!send_frame(zmq::message_t(head.data(), head.size()), left > 0)) return false;
    for (const Payload& payload : envelope.payloads) {
      if (!send_frame(to_frame(payload), --left > 0)) return false;
    }
    return true;
  } catch (const zmq::error_t&) {
    return false;  // EHOSTUNREACH: the connection is gone
  }
}

std::optional<Incoming> Socket::receive() {
  if (!state_->may_have_message) return std::nullopt;
  zmq::message_t frame;
  state_->may_have_message = receive_frame(state_->socket, frame);
  if (!state_->may_have_message) return std::nullopt;
  Incoming incoming{Route(), protocol_error("a message without a body came to the control port")};
  if (state_->router) {
    incoming.route.assign(static_cast<const char*>(frame.data()), frame.size());
    if (!frame.more()) return incoming;
    // The rest of a message is there when its first frame is.
    if (!receive_frame(state_->socket, frame)) return incoming;
  }
  Result<Message> message = decode({static_cast<const std::byte*>(frame.data()), frame.size()});
  std::vector<Payload> payloads;
  for (bool more = frame.more(); more;) {
    zmq::message_t payload;
    if (!receive_frame(state_->socket, payload)) break;
    more = payload.more();
    if (message) payloads.push_back(to_payload(std::move(payload)));
  }
  if (message) {
    incoming.envelope = Envelope{std::move(message).value(), std::move(payloads)};
  } else {
    incoming.envelope = message.status();
  }
  return incoming;
}

std::optional<SocketEvent> Socket::next_event() {
  if (!state_->may_have_event) return std::nullopt;
  zmq::message_t frame;
  state_->may_have_event = receive_frame(state_->monitor, frame);
  if (!state_->may_have_event) return std::nullopt;
  std::uint16_t event = 0;
  std::memcpy(&event, frame.data(), sizeof(event));
  while (frame.more()) {
    if (!receive_frame(state_->monitor, frame)) break;
  }
  return event == ZMQ_EVENT_DISCONNECTED ? SocketEvent::kDisconnected : SocketEvent::kConnected;
}

void Socket::wait(std::initializer_list<Socket*> sockets, int fd, Deadline deadline) {
  std::vector<pollfd> items;
  items.reserve(1 + 2 * sockets.size());
  items.push_back({fd, POLLIN, 0});
  bool ready = false;
  for (Socket* socket : sockets) {
    if (socket == nullptr) continue;
    ready |= socket->state_->ready();
    items.push_back({socket->state_->fd, POLLIN, 0});
    items.push_back({socket->state_->monitor_fd, POLLIN, 0});
  }
  // When a signal ends it, nothing is found, and the caller waits again.
  if (::poll(items.data(), items.size(), ready ? 0 : deadline.poll_ms()) <= 0) return;
  auto item = items.begin() + 1;
  for (Socket* socket : sockets) {
    if (socket == nullptr) continue;
    socket->state_->may_have_message |= (item++)->revents != 0;
    socket->state_->may_have_event |= (item++)->revents != 0;
  }
}

}  // namespace ckpt::control
