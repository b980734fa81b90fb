#include "transport/network/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/env.h"
#include "base/fd.h"
#include "base/strings.h"
#include "transport/network/name_lookup.h"

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

/// For a resolver: several servers, each asked again.
constexpr std::chrono::seconds kNamePatience{10};

/// For documentation (RFC 5737, RFC 3849): only the default route leads there.
constexpr const char* kElsewhere[] = {"192.0.2.1", "2001:db8::1"};

bool is_link_local(const sockaddr* address) {
  if (address->sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> all;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return all;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    std::string address = numeric(at->ifa_addr);
    if (address.empty()) continue;
    all.push_back({at->ifa_name, std::move(address), (at->ifa_flags & IFF_LOOPBACK) != 0,
                   is_link_local(at->ifa_addr)});
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

/// The address that the kernel would send from; connecting a datagram socket sends nothing.
std::optional<std::string> address_towards(const std::string& host) {
  for (const SocketAddress& address : addresses_of(host, kNamePatience)) {
    const UniqueFd socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), address.get(), address.length) != 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      return numeric(reinterpret_cast<const sockaddr*>(&own));
    }
  }
  return std::nullopt;
}

std::string default_source() {
  for (const char* host : kElsewhere) {
    if (auto address = address_towards(host)) return *address;
  }
  return {};
}

const InterfaceAddress* owner_of(const std::vector<InterfaceAddress>& own,
                                 const std::string& address) {
  const auto at = std::ranges::find(own, address, &InterfaceAddress::address);
  return at == own.end() ? nullptr : &*at;
}

/// Also 127.0.0.2, which no interface shows.
bool is_loopback(const InterfaceAddress* owner, const std::string& address) {
  return owner != nullptr ? owner->loopback : address.starts_with("127.");
}

}  // namespace

const InterfaceAddress* reachable_address(const std::vector<InterfaceAddress>& own,
                                          const std::string& default_source) {
  const InterfaceAddress* by_default = owner_of(own, default_source);
  if (by_default != nullptr && !by_default->loopback) return by_default;
  const auto at = std::ranges::find_if(own, [](const InterfaceAddress& address) {
    return !address.loopback && !address.link_local;
  });
  return at == own.end() ? nullptr : &*at;
}

Result<OwnAddress> named_address(const std::vector<InterfaceAddress>& own,
                                 const std::string& wanted, const std::string& reason) {
  const std::string plain = normalised(wanted);
  const InterfaceAddress* link_local = nullptr;
  std::vector<std::string> known;
  for (const InterfaceAddress& candidate : own) {
    if (candidate.address == plain || candidate.interface == plain) {
      if (!candidate.link_local) {
        return OwnAddress{candidate.address, candidate.interface, reason, true};
      }
      link_local = &candidate;
    }
    known.push_back(concat(candidate.interface, " ", candidate.address));
  }
  if (link_local != nullptr) {
    return invalid_argument(concat(
        quoted(wanted), " (", reason, ") is ", link_local->address, " on ", link_local->interface,
        ", a link-local address, which other hosts cannot connect to; this host has ",
        join(known, ", ")));
  }
  return invalid_argument(concat(quoted(wanted), " (", reason,
                                 ") is no address or interface of this host; it has ",
                                 join(known, ", ")));
}

Result<OwnAddress> own_address(const std::string& given, const std::string& master_host) {
  if (!given.empty()) return named_address(interface_addresses(), given, "given");
  if (const auto from_environment = env_string("PS_HOST_IP")) {
    return named_address(interface_addresses(), *from_environment, "PS_HOST_IP");
  }
  const auto address = address_towards(master_host);
  if (!address) return OwnAddress{{}, {}, concat("no route to ", master_host)};
  const std::vector<InterfaceAddress> own = interface_addresses();
  const InterfaceAddress* source = owner_of(own, *address);
  const bool link_local = source != nullptr && source->link_local;
  if (link_local || is_loopback(source, *address)) {
    if (const InterfaceAddress* reachable = reachable_address(own, default_source())) {
      return OwnAddress{reachable->address, reachable->interface,
                        concat("for other hosts; ", master_host,
                               link_local ? " is reached by a link-local one" : " is this one")};
    }
  }
  return OwnAddress{*address, source != nullptr ? source->interface : std::string(),
                    concat("route to ", master_host)};
}

}  // namespace ckpt
