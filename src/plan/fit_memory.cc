#include <algorithm>
#include <limits>

#include "base/strings.h"
#include "plan/plan.h"
#include "plan/weights.h"

namespace ckpt {
namespace {

constexpr std::uint64_t kDefaultRing = 1ull << 30;
/// Small buckets are cut into smaller chunks, so that they still draw on many owners at once, but
/// not into such small ones that copies become slow (53 of 55 GB/s at 4 MiB).
constexpr std::uint64_t kChunksOfABucket = 16;
constexpr std::uint64_t kSmallChunk = 4ull << 20;
/// Sizes beyond this are nobody's memory; sums of a few stay far from overflow.
constexpr std::uint64_t kLargestSize =
    std::numeric_limits<std::uint64_t>::max() / 8 / kRingAlignment * kRingAlignment;

constexpr std::uint64_t rounded_down(std::uint64_t bytes) { return bytes - bytes % kRingAlignment; }

struct Sizes {
  const CatalogTensor* largest = nullptr;
  std::uint64_t largest_bytes = 0;  ///< rounded up to kRingAlignment
  std::uint64_t all_bytes = 0;      ///< every tensor rounded up to kRingAlignment
};

Sizes measure(const Catalog& catalog) {
  Sizes sizes;
  for (const CatalogTensor& tensor : catalog.tensors()) {
    const std::uint64_t bytes = padded(std::min(tensor.info->bytes, kLargestSize));
    sizes.all_bytes = std::min(sizes.all_bytes + bytes, kLargestSize);
    if (!sizes.largest || bytes > sizes.largest_bytes) {
      sizes.largest = &tensor;
      sizes.largest_bytes = bytes;
    }
  }
  return sizes;
}

/// The ring that was asked for, before anyone looks at the memory.
std::uint64_t wanted_ring(const MemoryRequest& request, const Sizes& sizes) {
  std::uint64_t ring = 0;
  if (request.ring_bytes > 0) {
    ring = std::min(request.ring_bytes, kLargestSize);
  } else if (request.bucket_bytes > 0) {
    ring = 2 * padded(std::min(request.bucket_bytes, kLargestSize));
  } else {
    // More than the whole checkpoint would never be written.
    ring = std::min(kDefaultRing, sizes.all_bytes);
  }
  return std::max({rounded_down(ring), sizes.largest_bytes, 2 * kRingAlignment});
}

void shrink_chunks(PlanOptions& options) {
  const std::uint64_t useful =
      std::max(kSmallChunk, padded(options.bucket_bytes / kChunksOfABucket));
  options.chunk_bytes = std::min(options.chunk_bytes, useful);
  options.cross_chunk_bytes = std::min(options.cross_chunk_bytes, options.chunk_bytes);
}

}  // namespace

Result<PlanOptions> fit_memory(const Catalog& catalog, const MemoryRequest& request,
                               std::uint64_t available_bytes) {
  if (request.chunk_bytes == 0 || request.cross_chunk_bytes == 0 || request.staging_chunks < 2) {
    return invalid_argument(
        "chunk sizes must be more than zero, and staging needs two chunks at least");
  }
  const Sizes sizes = measure(catalog);
  PlanOptions options;
  options.sharing = request.sharing;
  // Copies begin at multiples of the ring's steps, so chunks end there.
  options.chunk_bytes = padded(std::min(request.chunk_bytes, kLargestSize));
  options.cross_chunk_bytes =
      std::min(padded(std::min(request.cross_chunk_bytes, kLargestSize)), options.chunk_bytes);
  options.staging_chunks = request.sharing == RingSharing::kPerRank ? request.staging_chunks : 0;

  const std::uint64_t available = rounded_down(std::min(available_bytes, kLargestSize));
  const std::uint64_t chunks = static_cast<std::uint64_t>(options.staging_chunks);
  const std::uint64_t staging =
      chunks > available / options.chunk_bytes ? available : chunks * options.chunk_bytes;
  const std::uint64_t wanted = wanted_ring(request, sizes);
  const std::uint64_t least = std::max(
      {sizes.largest_bytes, std::min(wanted, 2 * options.chunk_bytes), 2 * kRingAlignment});

  options.ring_bytes = std::min(wanted, available - staging);
  if (options.ring_bytes >= least) {
    const std::uint64_t half = rounded_down(options.ring_bytes / 2);
    const std::uint64_t asked = padded(std::min(request.bucket_bytes, kLargestSize));
    options.bucket_bytes = asked > 0 ? std::min(asked, half) : half;
    if (!request.overlap) {
      options.serial = true;
      options.ring_bytes = options.bucket_bytes =
          std::max(options.bucket_bytes, sizes.largest_bytes);
    }
    shrink_chunks(options);
    return options;
  }

  options.staging_chunks = 0;
  options.serial = true;
  options.ring_bytes = options.bucket_bytes = std::min(wanted, available);
  shrink_chunks(options);
  if (options.ring_bytes >= std::max(sizes.largest_bytes, kRingAlignment)) return options;
  if (!sizes.largest) {
    return resource_exhausted(
        concat("only ", format_bytes(available_bytes), " of memory are available for the ring"));
  }
  return resource_exhausted(concat("tensor ", quoted(sizes.largest->info->name), " of rank ",
                                   catalog.replicas(*sizes.largest)[0].rank, " needs a ring of ",
                                   format_bytes(sizes.largest_bytes), " (", sizes.largest_bytes,
                                   " bytes), and only ", format_bytes(available_bytes), " (",
                                   available_bytes,
                                   " bytes) are available on the fullest device: free memory "
                                   "there, or let the ring have more of it "
                                   "(PS_MEM_FRACTION)"));
}

}  // namespace ckpt
