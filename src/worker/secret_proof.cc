#include "worker/secret_proof.h"

#include <sodium.h>

#include <array>

namespace ckpt::native {
namespace {

void append_u64(std::vector<std::byte>& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(value >> shift));
}

/// Lengths go in front, so that no two handshakes give the same text.
std::vector<std::byte> text_to_prove(Role role, const Handshake& handshake) {
  std::vector<std::byte> text{static_cast<std::byte>(role)};
  append_u64(text, handshake.epoch);
  for (const auto nonce : {handshake.worker_nonce, handshake.rank_nonce}) {
    append_u64(text, nonce.size());
    text.insert(text.end(), nonce.begin(), nonce.end());
  }
  return text;
}

const unsigned char* raw(const void* data) { return static_cast<const unsigned char*>(data); }

}  // namespace

std::vector<std::byte> make_nonce() {
  std::vector<std::byte> nonce(32);
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::vector<std::byte> prove_secret(std::string_view secret, Role role,
                                    const Handshake& handshake) {
  std::array<unsigned char, crypto_auth_KEYBYTES> key;
  crypto_generichash(key.data(), key.size(), raw(secret.data()), secret.size(), nullptr, 0);
  const std::vector<std::byte> text = text_to_prove(role, handshake);
  std::vector<std::byte> proof(crypto_auth_BYTES);
  crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), raw(text.data()), text.size(),
              key.data());
  sodium_memzero(key.data(), key.size());
  return proof;
}

bool check_proof(std::span<const std::byte> proof, std::string_view secret, Role role,
                 const Handshake& handshake) {
  const std::vector<std::byte> expected = prove_secret(secret, role, handshake);
  return proof.size() == expected.size() &&
         sodium_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace ckpt::native
