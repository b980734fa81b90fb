#include "transport/network/name_lookup.h"

#include <netdb.h>

#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

namespace ckpt {
namespace {

std::vector<SocketAddress> ask(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.length = at->ai_addrlen;
  }
  return addresses;
}

}  // namespace

std::vector<SocketAddress> look_up(const std::string& host) { return ask(host, 0); }

std::vector<SocketAddress> addresses_of(const std::string& host, std::chrono::milliseconds patience,
                                        const NameLookup& lookup) {
  if (host.empty()) return {};
  if (auto numeric = ask(host, AI_NUMERICHOST); !numeric.empty()) return numeric;
  std::promise<std::vector<SocketAddress>> promise;
  auto answer = promise.get_future();
  // getaddrinfo cannot be ended.
  std::thread([host, lookup, promise = std::move(promise)]() mutable {
    promise.set_value(lookup(host));
  }).detach();
  if (answer.wait_for(patience) != std::future_status::ready) return {};
  return answer.get();
}

}  // namespace ckpt
