#include "trial/weights.h"

#include <algorithm>
#include <cstring>
#include <functional>

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

using Shape = std::vector<std::int64_t>;
using Add = std::function<void(std::string name, Shape shape)>;

void add_dense_layer(const std::string& prefix, int shrink, const Add& add) {
  const std::int64_t hidden = 4096 / shrink, inner = 12288 / shrink, kv = 1024 / shrink;
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

void add_expert_layer(const std::string& prefix, int shrink, const Add& add) {
  constexpr int kExperts = 128;
  const std::int64_t hidden = 4096 / shrink, heads = 8192 / shrink, kv = 512 / shrink,
                     inner = 1536 / shrink;
  add(prefix + "self_attn.q_proj.weight", {heads, hidden});
  add(prefix + "self_attn.k_proj.weight", {kv, hidden});
  add(prefix + "self_attn.v_proj.weight", {kv, hidden});
  add(prefix + "self_attn.o_proj.weight", {hidden, heads});
  add(prefix + "mlp.gate.weight", {kExperts, hidden});
  for (int expert = 0; expert < kExperts; ++expert) {
    const std::string of_expert = concat(prefix, "mlp.experts.", expert, ".");
    add(of_expert + "gate_proj.weight", {inner, hidden});
    add(of_expert + "up_proj.weight", {inner, hidden});
    add(of_expert + "down_proj.weight", {hidden, inner});
  }
  add(prefix + "input_layernorm.weight", {hidden});
  add(prefix + "post_attention_layernorm.weight", {hidden});
}

}  // namespace

Weights Weights::of_model(std::uint64_t bytes, bool experts, int shrink, int threads) {
  Weights weights;
  const Add add = [&](std::string name, Shape shape) {
    weights.add(std::move(name), std::move(shape));
  };
  add("model.embed_tokens.weight", {151936 / shrink, 4096 / shrink});
  for (int layer = 0; weights.total_bytes_ < bytes; ++layer) {
    (experts ? add_expert_layer : add_dense_layer)(concat("model.layers.", layer, "."), shrink,
                                                   add);
  }
  weights.make_words(threads);
  return weights;
}

Weights Weights::equal(int count, std::uint64_t bytes, int threads) {
  Weights weights;
  for (int i = 0; i < count; ++i) {
    weights.add(concat("model.layers.", i, ".weight"), {static_cast<std::int64_t>(bytes / 2)});
  }
  weights.make_words(threads);
  return weights;
}

void Weights::add(std::string name, Shape shape) {
  tensors_.push_back(*make_tensor_info(std::move(name), DType::kBF16, std::move(shape)));
  total_bytes_ += tensors_.back().bytes;
}

void Weights::make_words(int threads) {
  const std::uint64_t largest = std::ranges::max(tensors_, {}, &TensorInfo::bytes).bytes;
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
