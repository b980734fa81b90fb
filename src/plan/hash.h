// A 64-bit hash of a sequence of words, equal on every machine. Not for hostile input.
#pragma once

#include <cstdint>

namespace ckpt {

class Hash64 {
 public:
  void add(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15ull;
    state_ ^= state_ >> 29;
  }
  std::uint64_t value() const {
    std::uint64_t z = state_;  // the finaliser of splitmix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3ull;
};

}  // namespace ckpt
