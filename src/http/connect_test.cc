#include "http/connect.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

namespace ckpt {
namespace {

using testing::HasSubstr;

/// A port of 127.0.0.1 that takes connections, or none any more.
class Listener {
 public:
  explicit Listener(int backlog) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_.get(), backlog), 0);
    socklen_t size = sizeof(address);
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    std::memcpy(&address_.storage, &address, sizeof(address));
    address_.length = sizeof(address);
  }
  const SocketAddress& address() const { return address_; }

 private:
  UniqueFd fd_;
  SocketAddress address_;
};

/// Its queue is full: what comes now is dropped, as by a firewall.
class FullListener : public Listener {
 public:
  FullListener() : Listener(0) {
    for (auto& fd : waiting_) {
      fd = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address().storage),
                      address().length);
    }
  }

 private:
  UniqueFd waiting_[4];
};

Endpoint named(const std::string& host) {
  Endpoint endpoint;
  endpoint.host = host;
  endpoint.port = 1;
  return endpoint;
}

/// A resolver that says nothing until it is let go.
struct Stuck {
  HostLookup lookup() {
    return [state = state](const std::string&, int) -> Result<std::vector<SocketAddress>> {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->over; });
      return unavailable("too late");
    };
  }
  ~Stuck() {
    const std::lock_guard lock(state->mutex);
    state->over = true;
    state->changed.notify_all();
  }
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

TEST(ConnectEndpoint, AResolverThatHangsEndsAtTheDeadline) {
  Stuck resolver;
  const auto fd =
      connect_endpoint(named("engine"), Deadline::after_seconds(0.1), {}, resolver.lookup());
  EXPECT_EQ(fd.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(fd.status().message(), HasSubstr("http://engine:1"));
}

TEST(ConnectEndpoint, AResolverThatHangsEndsWithTheUpdate) {
  Stuck resolver;
  AbortSignal abort;
  std::thread other([&] { abort.raise(data_loss("rank 3 failed")); });
  const auto fd =
      connect_endpoint(named("engine"), Deadline::after_seconds(100), abort, resolver.lookup());
  other.join();
  EXPECT_EQ(fd.status().message(), "rank 3 failed");
}

TEST(ConnectEndpoint, ANameWithoutAddressSaysWhy) {
  const auto fd =
      connect_endpoint(named("engine"), Deadline::after_seconds(10), {},
                       [](const std::string&, int) { return unavailable("no such name"); });
  EXPECT_THAT(fd.status().message(),
              testing::AllOf(HasSubstr("http://engine:1"), HasSubstr("no such name")));
}

TEST(ConnectEndpoint, AnAddressThatDropsEverythingLeavesTimeForTheNext) {
  const FullListener drops;
  const Listener takes(8);
  const auto lookup = [&](const std::string&, int) -> Result<std::vector<SocketAddress>> {
    return std::vector<SocketAddress>{drops.address(), takes.address()};
  };
  const auto fd = connect_endpoint(named("engine"), Deadline::after_seconds(2), {}, lookup);
  EXPECT_TRUE(fd.is_ok()) << fd.status().message();
}

TEST(ConnectEndpoint, LocalhostIsLookedUp) {
  const auto found = look_up_host("localhost", 80);
  ASSERT_TRUE(found.is_ok()) << found.status().message();
  EXPECT_FALSE(found->empty());
}

}  // namespace
}  // namespace ckpt
