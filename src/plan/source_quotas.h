// How much each of several owners should give of what they all hold, so that the busiest of their
// network devices is done as early as possible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ckpt {

/// Tensors that the same owners hold, taken together.
struct SharedBytes {
  std::vector<std::uint32_t> owners;  ///< indices into the loads and costs below; each once
  std::uint64_t steps;                ///< to be shared out among them
};

/// `loads[o]` is what owner o is busy with already, `costs[o]` (more than zero) what each step
/// costs it. Element [c][i] of the result is the number of steps that owners[i] gives of shared[c];
/// they add up to its steps. The largest load is the least possible one, rounding apart: a flow
/// through a network of the sets and the owners, searched for the smallest time that lets all of it
/// through. Whole numbers only.
std::vector<std::vector<std::uint64_t>> share_out(std::span<const SharedBytes> shared,
                                                  std::span<const std::uint64_t> loads,
                                                  std::span<const std::uint64_t> costs);

}  // namespace ckpt
