// What a pass without workers has around its spreads: the lane of an owner, and a reader in the
// place of a worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "collective/testing/spread_backend.h"
#include "memory/host_pool.h"

namespace ckpt::testing {

/// Copies the fill stream of `rank` out of its pool. Stops with ok where `fills` says false.
Status run_fill(const RankPass& rank, const HostPool& pool,
                const std::function<bool(int rank, std::uint64_t sequence)>& fills,
                Deadline deadline, AbortSignal& abort);

/// Compares each bucket in the ring of `rank` with `contents` (by tensor of the catalog), then
/// acknowledges it. kDataLoss names the tensor. Stops with ok where `acknowledges` says false.
Status run_reader(const RankPass& rank, const Catalog& catalog,
                  const std::vector<std::vector<std::byte>>& contents,
                  const std::function<bool(int rank, std::uint32_t bucket)>& acknowledges,
                  Deadline deadline, AbortSignal& abort);

}  // namespace ckpt::testing
