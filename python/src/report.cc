#include "report.h"

#include <nanobind/stl/string.h>

namespace ckpt::python {

namespace nb = nanobind;

nb::dict report_fields(const UpdateReport& report) {
  nb::list stages;
  for (const StageReport& stage : report.stages) {
    stages.append(nb::make_tuple(stage.name, stage.seconds, stage.bytes));
  }
  nb::dict fields;
  fields["rank"] = report.rank;
  fields["epoch"] = report.epoch;
  fields["checkpoint_name"] = report.checkpoint_name;
  fields["stages"] = stages;
  fields["total_tensors"] = report.total_tensors;
  fields["total_bytes"] = report.total_bytes;
  fields["filled_bytes"] = report.filled_bytes;
  fields["received_bytes"] = report.received_bytes;
  fields["loaded_bytes"] = report.loaded_bytes;
  fields["loaded_tensors"] = report.loaded_tensors;
  fields["verified_tensors"] = report.verified_tensors;
  fields["buckets"] = report.buckets;
  fields["passes"] = report.passes;
  fields["first_bucket_seconds"] = report.first_bucket_seconds;
  fields["commit_seconds"] = report.commit_seconds;
  fields["update_seconds"] = report.update_seconds;
  fields["wire"] = report.wire;
  fields["ring_bytes"] = report.ring_bytes;
  fields["staging_bytes"] = report.staging_bytes;
  fields["context_bytes"] = report.context_bytes;
  fields["allocated_bytes"] = report.allocated_bytes;
  fields["kept_bytes"] = report.kept_bytes;
  fields["streams_made"] = report.streams_made;
  return fields;
}

}  // namespace ckpt::python
