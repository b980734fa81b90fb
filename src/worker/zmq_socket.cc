#include "worker/zmq_socket.h"

#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/strings.h"

namespace ckpt {
namespace {

Status zmq_status(std::string_view what) {
  return io_error(concat(what, ": ", ::zmq_strerror(::zmq_errno())));
}

/// A received frame; closed with the scope.
class Frame {
 public:
  Frame() { ::zmq_msg_init(&frame_); }
  ~Frame() { ::zmq_msg_close(&frame_); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  /// False when nothing is there.
  Result<bool> receive(void* socket) {
    while (::zmq_msg_recv(&frame_, socket, ZMQ_DONTWAIT) < 0) {
      if (::zmq_errno() == EAGAIN) return false;
      if (::zmq_errno() != EINTR) return zmq_status("zmq_msg_recv");
    }
    return true;
  }
  const std::byte* data() { return static_cast<const std::byte*>(::zmq_msg_data(&frame_)); }
  std::size_t size() const { return ::zmq_msg_size(&frame_); }
  bool more() const { return ::zmq_msg_more(&frame_) != 0; }
  int connection() { return ::zmq_msg_get(&frame_, ZMQ_SRCFD); }

  /// libzmq notes the peer of an ipc connection as "<address>:<uid>:<gid>:<pid>".
  std::optional<PeerProcess> sender() const {
    const char* text = ::zmq_msg_gets(&frame_, "Peer-Address");
    if (text == nullptr) return std::nullopt;
    const std::vector<std::string> pieces = split(text, ':');
    if (pieces.size() < 4) return std::nullopt;
    const auto uid = parse_int(pieces[pieces.size() - 3]);
    const auto pid = parse_int(pieces[pieces.size() - 1]);
    if (!uid || !pid) return std::nullopt;
    return PeerProcess{*pid, static_cast<std::uint32_t>(*uid)};
  }

 private:
  mutable zmq_msg_t frame_;
};

int zmq_type(ZmqOptions::Type type) {
  switch (type) {
    case ZmqOptions::Type::kRouter:
      return ZMQ_ROUTER;
    case ZmqOptions::Type::kDealer:
      return ZMQ_DEALER;
    case ZmqOptions::Type::kReq:
      return ZMQ_REQ;
  }
  return ZMQ_ROUTER;
}

std::optional<ZmqEvent::Kind> event_kind(std::uint16_t event) {
  switch (event) {
    case ZMQ_EVENT_ACCEPTED:
      return ZmqEvent::Kind::kAccepted;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return ZmqEvent::Kind::kReady;
    case ZMQ_EVENT_CONNECTED:
      return ZmqEvent::Kind::kConnected;
    case ZMQ_EVENT_CLOSED:
      return ZmqEvent::Kind::kRefused;
    case ZMQ_EVENT_DISCONNECTED:
      return ZmqEvent::Kind::kDisconnected;
    default:
      return std::nullopt;
  }
}

}  // namespace

Status check_same_user(const PeerProcess& peer, std::uint32_t our_uid) {
  if (peer.uid == our_uid) return Status::ok();
  return Status(StatusCode::kFailedPrecondition,
                concat("process ", peer.pid, " runs as user ", peer.uid, ", we as ", our_uid,
                       "; rank and worker must run as the same user"));
}

class ZmqSocket::Impl {
 public:
  explicit Impl(ZmqOptions options) : options_(options) {}
  ~Impl() { close(0); }

  Status open() {
    // libpgm, which Debian's libzmq starts with its first context and ends with its last, does not
    // bear that from two threads: one context (without a socket, so without a thread) always stays.
    static void* const always_one = ::zmq_ctx_new();
    if (always_one == nullptr) return zmq_status("zmq_ctx_new");
    context_ = ::zmq_ctx_new();
    if (context_ == nullptr) return zmq_status("zmq_ctx_new");
    socket_ = ::zmq_socket(context_, zmq_type(options_.type));
    if (socket_ == nullptr) return zmq_status("zmq_socket");
    CKPT_RETURN_IF_ERROR(configure());
    return open_monitor();
  }

  Status bind(const std::string& address) {
    CKPT_RETURN_IF_ERROR(options_.own_process_only ? filter(ZMQ_IPC_FILTER_PID, ::getpid())
                                                   : filter(ZMQ_IPC_FILTER_UID, ::geteuid()));
    if (::zmq_bind(socket_, address.c_str()) == 0) return Status::ok();
    if (::zmq_errno() == EADDRINUSE) {
      return already_exists(concat(address, " is taken by another process of this host"));
    }
    return zmq_status(concat("zmq_bind to ", address));
  }

  Status connect(const std::string& address) {
    if (::zmq_connect(socket_, address.c_str()) == 0) return Status::ok();
    return zmq_status(concat("zmq_connect to ", address));
  }

  int descriptor(void* socket) const {
    int fd = -1;
    std::size_t size = sizeof(fd);
    ::zmq_getsockopt(socket, ZMQ_FD, &fd, &size);
    return fd;
  }
  int fd() const { return descriptor(socket_); }
  int event_fd() const { return descriptor(monitor_); }

  Result<std::optional<ZmqMessage>> receive() {
    ZmqMessage message;
    if (options_.type == ZmqOptions::Type::kRouter) {
      Frame route;
      CKPT_ASSIGN_OR_RETURN(const bool there, route.receive(socket_));
      if (!there) return std::optional<ZmqMessage>();
      message.route.assign(reinterpret_cast<const char*>(route.data()), route.size());
      if (!route.more()) return std::optional<ZmqMessage>(std::move(message));
    }
    bool more = true;
    while (more) {
      Frame frame;
      CKPT_ASSIGN_OR_RETURN(const bool there, frame.receive(socket_));
      if (!there) return std::optional<ZmqMessage>();
      // Our messages have one frame; a stranger's further frames make it undecodable, as they
      // should.
      message.content.insert(message.content.end(), frame.data(), frame.data() + frame.size());
      message.connection = frame.connection();
      message.sender = frame.sender();
      more = frame.more();
    }
    return std::optional<ZmqMessage>(std::move(message));
  }

  bool writable() {
    int events = 0;
    std::size_t size = sizeof(events);
    return ::zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &size) == 0 &&
           (events & ZMQ_POLLOUT) != 0;
  }

  Status send(const std::string& route, std::span<const std::byte> content) {
    if (options_.type == ZmqOptions::Type::kRouter) {
      CKPT_RETURN_IF_ERROR(send_frame(route.data(), route.size(), ZMQ_SNDMORE));
    }
    return send_frame(content.data(), content.size(), 0);
  }

  std::vector<ZmqEvent> events() {
    std::vector<ZmqEvent> result;
    while (true) {
      Frame head;
      Frame address;
      auto there = head.receive(monitor_);
      if (!there || !*there || head.size() < 6) return result;
      std::uint16_t event;
      std::int32_t value;
      std::memcpy(&event, head.data(), sizeof(event));
      std::memcpy(&value, head.data() + sizeof(event), sizeof(value));
      if (head.more() && !address.receive(monitor_)) return result;
      if (const auto kind = event_kind(event)) result.push_back({*kind, value});
    }
  }

  void close(int linger_ms) {
    if (context_ == nullptr) return;
    if (socket_ != nullptr) {
      ::zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
      ::zmq_socket_monitor(socket_, nullptr, 0);
      ::zmq_close(socket_);
    }
    if (monitor_ != nullptr) ::zmq_close(monitor_);
    socket_ = monitor_ = nullptr;
    while (::zmq_ctx_term(context_) != 0 && ::zmq_errno() == EINTR) {
    }
    context_ = nullptr;
  }

 private:
  Status set(int option, int value) {
    if (::zmq_setsockopt(socket_, option, &value, sizeof(value)) == 0) return Status::ok();
    return zmq_status(concat("zmq_setsockopt ", option));
  }

  template <typename Id>
  Status filter(int option, Id id) {
    if (::zmq_setsockopt(socket_, option, &id, sizeof(id)) == 0) return Status::ok();
    return zmq_status("ZMQ_IPC_FILTER");
  }

  Status configure() {
    const int timeout_ms =
        std::max(100, static_cast<int>(std::min(options_.heartbeat_timeout_seconds, 3e5) * 1000));
    CKPT_RETURN_IF_ERROR(set(ZMQ_HEARTBEAT_IVL, std::max(25, timeout_ms / 5)));
    CKPT_RETURN_IF_ERROR(set(ZMQ_HEARTBEAT_TIMEOUT, timeout_ms));
    CKPT_RETURN_IF_ERROR(set(ZMQ_LINGER, 0));
    CKPT_RETURN_IF_ERROR(set(ZMQ_SNDHWM, 0));
    CKPT_RETURN_IF_ERROR(set(ZMQ_RCVHWM, 0));
    // Never again, that is. -1 would say so, but then libzmq drops what a closed connection had
    // delivered and nobody has read yet.
    CKPT_RETURN_IF_ERROR(set(ZMQ_RECONNECT_IVL, 1000 * 3600 * 24));
    if (options_.type == ZmqOptions::Type::kRouter) return set(ZMQ_ROUTER_MANDATORY, 1);
    return Status::ok();
  }

  Status open_monitor() {
    // The name is private to the context, which is ours alone.
    constexpr const char* kName = "inproc://events";
    constexpr int kEvents =
        ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED;
    if (::zmq_socket_monitor(socket_, kName, kEvents) != 0) return zmq_status("zmq_socket_monitor");
    monitor_ = ::zmq_socket(context_, ZMQ_PAIR);
    if (monitor_ == nullptr) return zmq_status("zmq_socket");
    const int linger = 0;
    ::zmq_setsockopt(monitor_, ZMQ_LINGER, &linger, sizeof(linger));
    if (::zmq_connect(monitor_, kName) != 0) return zmq_status("zmq_connect to the monitor");
    return Status::ok();
  }

  Status send_frame(const void* data, std::size_t size, int flags) {
    while (::zmq_send(socket_, data, size, flags | ZMQ_DONTWAIT) < 0) {
      if (::zmq_errno() == EINTR) continue;
      if (::zmq_errno() == EHOSTUNREACH || ::zmq_errno() == EAGAIN) {
        return peer_lost("the connection is closed");
      }
      return zmq_status("zmq_send");
    }
    return Status::ok();
  }

  ZmqOptions options_;
  void* context_ = nullptr;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
};

ZmqSocket::ZmqSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqSocket::~ZmqSocket() = default;

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::bind(const std::string& address,
                                                   const ZmqOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  CKPT_RETURN_IF_ERROR(impl->open());
  CKPT_RETURN_IF_ERROR(impl->bind(address));
  return std::unique_ptr<ZmqSocket>(new ZmqSocket(std::move(impl)));
}

Result<std::unique_ptr<ZmqSocket>> ZmqSocket::connect(const std::string& address,
                                                      const ZmqOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  CKPT_RETURN_IF_ERROR(impl->open());
  CKPT_RETURN_IF_ERROR(impl->connect(address));
  return std::unique_ptr<ZmqSocket>(new ZmqSocket(std::move(impl)));
}

int ZmqSocket::fd() const { return impl_->fd(); }
int ZmqSocket::event_fd() const { return impl_->event_fd(); }
Result<std::optional<ZmqMessage>> ZmqSocket::receive() { return impl_->receive(); }
bool ZmqSocket::writable() { return impl_->writable(); }
Status ZmqSocket::send(const std::string& route, std::span<const std::byte> content) {
  return impl_->send(route, content);
}
std::vector<ZmqEvent> ZmqSocket::events() { return impl_->events(); }
void ZmqSocket::close(int linger_ms) { impl_->close(linger_ms); }

}  // namespace ckpt
