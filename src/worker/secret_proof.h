// How rank and worker show each other that they know the job's secret, without sending it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ckpt::native {

enum class Role : unsigned char { kRank = 1, kWorker = 2 };

/// What both sides have seen of a handshake.
struct Handshake {
  std::span<const std::byte> worker_nonce;
  std::span<const std::byte> rank_nonce;
  std::uint64_t epoch;
};

/// 32 random bytes.
std::vector<std::byte> make_nonce();
/// HMAC-SHA-512-256 over role and handshake, keyed by the secret (an empty one too). The role keeps
/// one side's proof from being sent back as the other's.
std::vector<std::byte> prove_secret(std::string_view secret, Role role, const Handshake& handshake);
/// In constant time.
bool check_proof(std::span<const std::byte> proof, std::string_view secret, Role role,
                 const Handshake& handshake);

}  // namespace ckpt::native
