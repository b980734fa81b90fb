// The loop below all loads: a pool cut into windows, which threads fill one by one, in order.
#pragma once

#include <functional>

#include "memory/load.h"

namespace ckpt {

/// Brings bytes [begin, begin + bytes) of tensor `tensor` to `to` and returns their digest sum with
/// the tensor's word indices. Called from several threads.
using FillBlock = std::function<Result<std::uint64_t>(std::size_t tensor, std::uint64_t begin,
                                                      std::byte* to, std::uint64_t bytes)>;

/// Calls `fill` for every byte of every tensor once, in blocks that stay in a processor's cache.
/// Windows are 8 MiB at 2 MiB borders: two threads never touch the same huge page, and the pieces
/// of the pool become full one after the other.
Result<TensorSums> load_windows(HostPool& pool, std::span<const PoolTensor> tensors,
                                const FillBlock& fill, const LoadOptions& options);

}  // namespace ckpt
