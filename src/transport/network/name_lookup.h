// The addresses behind a host's name, without waiting for ever for a resolver.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ckpt {

struct SocketAddress {
  sockaddr_storage storage;
  socklen_t length;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Asks whoever knows names, for as long as that takes; empty: nobody knows it.
using NameLookup = std::function<std::vector<SocketAddress>(const std::string& host)>;
/// getaddrinfo.
std::vector<SocketAddress> look_up(const std::string& host);

/// Of an address in digits at once; else what `lookup` says within `patience`, on a thread of its
/// own that is left behind when it takes longer. Empty when there is no answer, or `host` is. The
/// port is 9, which nobody is sent anything at.
std::vector<SocketAddress> addresses_of(const std::string& host, std::chrono::milliseconds patience,
                                        const NameLookup& lookup = look_up);

}  // namespace ckpt
