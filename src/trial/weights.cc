#include "trial/weights.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "base/strings.h"

namespace ckpt::bench {
namespace {

constexpr std::uint64_t kShift = 4096 + 64;  // from the beginning of a tensor to that of the next
constexpr std::uint64_t kPiece = 1 << 20;

std::uint64_t random_word(std::uint64_t index) {
  std::uint64_t x = (index + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

Weights::Weights(std::uint64_t bytes, int shrink, int threads) {
  const std::int64_t hidden = 4096 / shrink, inner = 12288 / shrink, kv = 1024 / shrink;
  std::uint64_t largest = 0;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    tensors_.push_back(*make_tensor_info(std::move(name), DType::kBF16, std::move(shape)));
    total_bytes_ += tensors_.back().bytes;
    largest = std::max(largest, tensors_.back().bytes);
  };
  add("model.embed_tokens.weight", {151936 / shrink, hidden});
  for (int layer = 0; total_bytes_ < bytes; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    add(prefix + "self_attn.q_proj.weight", {hidden, hidden});
    add(prefix + "self_attn.k_proj.weight", {kv, hidden});
    add(prefix + "self_attn.v_proj.weight", {kv, hidden});
    add(prefix + "self_attn.o_proj.weight", {hidden, hidden});
    add(prefix + "mlp.gate_proj.weight", {inner, hidden});
    add(prefix + "mlp.up_proj.weight", {inner, hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, inner});
    add(prefix + "input_layernorm.weight", {hidden});
    add(prefix + "post_attention_layernorm.weight", {hidden});
  }
  words_.resize((largest + tensors_.size() * kShift) / 8 * 8 + 8);
  ThreadPool pool(threads);
  [[maybe_unused]] const Status done =
      pool.for_each((words_.size() + kPiece - 1) / kPiece, [&](std::size_t piece) {
        const std::uint64_t end = std::min<std::uint64_t>(words_.size(), (piece + 1) * kPiece);
        for (std::uint64_t at = piece * kPiece; at < end; at += 8) {
          const std::uint64_t word = random_word(at / 8);
          std::memcpy(words_.data() + at, &word, 8);
        }
        return Status();
      });
}

std::span<const std::byte> Weights::expected(std::size_t i) const {
  return std::span(words_).subspan(i * kShift, tensors_[i].bytes);
}

}  // namespace ckpt::bench
