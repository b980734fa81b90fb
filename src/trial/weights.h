// The checkpoint of a run: names and shapes of qwen3 models, and bytes that every process can
// compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint_engine/tensor.h"

namespace ckpt::bench {

/// Tensors are slices of one buffer of random words, each beginning elsewhere: content depends on
/// tensor and position, and costs the memory of the largest tensor only.
class Weights {
 public:
  /// Embeddings and as many layers as are needed for `bytes`; dimensions are divided by `shrink`.
  /// `experts`: as qwen3-235b-a22b has them, else as qwen3-8b.
  static Weights of_model(std::uint64_t bytes, bool experts, int shrink, int threads);
  /// `count` tensors of `bytes` each.
  static Weights equal(int count, std::uint64_t bytes, int threads);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  /// What tensor `i` must contain.
  std::span<const std::byte> expected(std::size_t i) const;

 private:
  Weights() = default;
  void add(std::string name, std::vector<std::int64_t> shape);
  void make_words(int threads);

  std::vector<TensorInfo> tensors_;
  std::uint64_t total_bytes_ = 0;
  std::vector<std::byte> words_;
};

}  // namespace ckpt::bench
