#include "worker/relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <utility>

namespace ckpt {
namespace {

/// One direction: at most one buffer under way, so that a side that does not read stops the other.
class Pipe {
 public:
  Pipe(int from, int to) : from_(from), to_(to) {}

  short wants_to_read() const { return begin_ == end_ && !ended_ ? POLLIN : 0; }
  short wants_to_write() const { return begin_ != end_ ? POLLOUT : 0; }
  bool ended() const { return ended_ && begin_ == end_; }

  /// Moves what can be moved now.
  void move() {
    if (begin_ != end_) write();
    while (begin_ == end_ && !ended_) {
      if (!read()) return;
      write();
    }
  }

 private:
  bool read() {
    const ssize_t n = ::recv(from_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(n);
    return true;
  }

  void write() {
    while (begin_ != end_) {
      const ssize_t n =
          ::send(to_, buffer_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n < 0) {  // nobody reads there any more
        begin_ = end_;
        ended_ = true;
        return;
      }
      begin_ += static_cast<std::size_t>(n);
    }
  }

  const int from_;
  const int to_;
  std::array<std::byte, 64 << 10> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  bool ended_ = false;
};

/// A descriptor that nothing is wanted from is left out: its hang-up would wake us all the time.
pollfd entry(int fd, int events) { return {events != 0 ? fd : -1, static_cast<short>(events), 0}; }

}  // namespace

Relay::Relay(UniqueFd worker, UniqueFd endpoint, UniqueFd process)
    : worker_(std::move(worker)), endpoint_(std::move(endpoint)), process_(std::move(process)) {
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  stop_.set();
  if (thread_.joinable()) thread_.join();
}

UniqueFd Relay::part() {
  parting_ = true;
  stop_.set();
  thread_.join();
  return std::move(worker_);
}

void Relay::run() {
  const auto in = std::make_unique<Pipe>(worker_.get(), endpoint_.get());
  const auto out = std::make_unique<Pipe>(endpoint_.get(), worker_.get());
  End end = End::kRunning;
  while (end == End::kRunning) {
    std::array<pollfd, 4> entries = {
        {entry(worker_.get(), in->wants_to_read() | out->wants_to_write()),
         entry(endpoint_.get(), out->wants_to_read() | in->wants_to_write()),
         entry(process_.get(), POLLIN), entry(stop_.fd(), POLLIN)}};
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) break;
    if (entries[3].revents != 0) break;
    in->move();
    out->move();
    if (entries[2].revents != 0) end = End::kWorkerEnded;
    if (out->ended()) end = End::kEndpointClosed;
    if (in->ended()) end = End::kWorkerClosed;
  }
  end_.store(end, std::memory_order_release);
  ::shutdown(endpoint_.get(), SHUT_RDWR);
  // Whether a worker that was given up lives on shows in its own end of the connection.
  if (!parting_) ::shutdown(worker_.get(), end == End::kEndpointClosed ? SHUT_WR : SHUT_RDWR);
}

}  // namespace ckpt
