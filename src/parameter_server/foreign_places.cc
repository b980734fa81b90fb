#include "parameter_server/foreign_places.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/strings.h"
#include "parameter_server/field_pool_metas.h"
#include "transport/descriptor.h"

namespace ckpt {
namespace {

/// [begin, end) of the pool, in one region or several without a gap.
struct Run {
  std::uint64_t begin, end;
};

std::vector<Run> runs_of(std::span<const PoolRegion> regions) {
  std::vector<Run> runs;
  for (const PoolRegion& region : regions) {
    if (!runs.empty() && runs.back().end == region.pool_offset) {
      runs.back().end += region.bytes;
    } else {
      runs.push_back({region.pool_offset, region.pool_offset + region.bytes});
    }
  }
  return runs;
}

Status check_regions(const InstanceData& data, const Descriptor& descriptor) {
  for (const PoolRegion& region : data.pool_regions) {
    const auto at = std::ranges::find(descriptor.regions, region.region, &Descriptor::Region::id);
    if (at == descriptor.regions.end() || at->bytes != region.bytes) {
      return invalid_argument(concat("region ", region.region, " of ", region.bytes,
                                     " bytes is not in its transport descriptor"));
    }
  }
  const auto door =
      std::ranges::find(descriptor.regions, data.door_region, &Descriptor::Region::id);
  if (data.door_region != 0 && data.door_region != kNoDoor && door == descriptor.regions.end()) {
    return invalid_argument(
        concat("its door, region ", data.door_region, ", is not in its transport descriptor"));
  }
  return Status::ok();
}

Status check_tensors(const Layout& layout, const InstanceData& data) {
  std::vector<std::size_t> by_offset;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    if (layout.tensors[i].bytes > 0) by_offset.push_back(i);
  }
  std::ranges::sort(by_offset, {}, [&](std::size_t i) { return data.offsets[i]; });
  const std::vector<Run> runs = runs_of(data.pool_regions);
  auto run = runs.begin();
  std::uint64_t free_from = 0;
  for (const std::size_t i : by_offset) {
    const TensorInfo& tensor = layout.tensors[i];
    const std::uint64_t begin = data.offsets[i];
    const auto place = [&] {
      return concat("tensor ", quoted(tensor.name), " of ", tensor.bytes, " bytes at offset ",
                    begin);
    };
    if (begin < free_from) return invalid_argument(concat(place(), " overlaps another"));
    while (run != runs.end() && run->end <= begin) ++run;
    if (run == runs.end() || begin < run->begin || tensor.bytes > run->end - begin) {
      return invalid_argument(concat(place(), " lies in no registered region"));
    }
    free_from = begin + tensor.bytes;
  }
  return Status::ok();
}

}  // namespace

Status check_places(const RankMetas& owner, std::string_view transport_kind,
                    const std::string& label) {
  const InstanceData& data = owner.instance;
  if (data.transport_descriptor.empty()) return Status::ok();
  const auto descriptor = decode_descriptor(data.transport_descriptor, transport_kind);
  if (!descriptor) return descriptor.status().with_context(label);
  CKPT_RETURN_IF_ERROR(check_regions(data, *descriptor).with_context(label));
  return check_tensors(*owner.layout, data).with_context(label);
}

}  // namespace ckpt
