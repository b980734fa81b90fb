#include "transport/network/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/env.h"
#include "base/fd.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// Numeric, without a scope; empty for other families.
std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

struct InterfaceAddress {
  std::string interface, address;
};

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return all;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    std::string address = numeric(at->ifa_addr);
    if (!address.empty()) all.push_back({at->ifa_name, std::move(address)});
  }
  return all;
}

/// In the form in which interface_addresses has it.
std::string normalised(std::string_view text) {
  std::string plain(trim(text));
  if (plain.size() > 2 && plain.front() == '[' && plain.back() == ']') {
    plain = plain.substr(1, plain.size() - 2);
  }
  in6_addr v6;
  char out[INET6_ADDRSTRLEN];
  if (::inet_pton(AF_INET6, plain.c_str(), &v6) == 1) {
    return ::inet_ntop(AF_INET6, &v6, out, sizeof(out));
  }
  return plain;
}

Result<OwnAddress> named_by_the_user(const std::string& text, const char* reason) {
  const std::string wanted = normalised(text);
  std::vector<std::string> known;
  for (const InterfaceAddress& own : interface_addresses()) {
    if (own.address == wanted || own.interface == wanted) {
      return OwnAddress{own.address, own.interface, reason};
    }
    known.push_back(concat(own.interface, " ", own.address));
  }
  return invalid_argument(concat(quoted(text), " (", reason,
                                 ") is no address or interface of this host; it has ",
                                 join(known, ", ")));
}

/// The address that the kernel would send from; connecting a datagram socket sends nothing.
std::optional<std::string> address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const UniqueFd socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      return numeric(reinterpret_cast<const sockaddr*>(&own));
    }
  }
  return std::nullopt;
}

}  // namespace

Result<OwnAddress> own_address(const std::string& given, const std::string& master_host) {
  if (!given.empty()) return named_by_the_user(given, "given");
  if (const auto from_environment = env_string("PS_HOST_IP")) {
    return named_by_the_user(*from_environment, "PS_HOST_IP");
  }
  const auto address = address_towards(master_host);
  if (!address) return OwnAddress{{}, {}, concat("no route to ", master_host)};
  OwnAddress own{*address, {}, concat("route to ", master_host)};
  for (const InterfaceAddress& mine : interface_addresses()) {
    if (mine.address == *address) own.interface = mine.interface;
  }
  return own;
}

}  // namespace ckpt
