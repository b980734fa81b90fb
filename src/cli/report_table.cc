#include "cli/report_table.h"

#include <algorithm>
#include <cstdio>

#include "base/strings.h"

namespace ckpt {
namespace {

/// A stage of all ranks together.
struct Row {
  std::string name;
  double seconds = 0;
  std::uint64_t bytes = 0;
};

void add(std::vector<Row>& rows, const std::string& name, const StageReport& stage) {
  auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  if (row == rows.end()) row = rows.insert(rows.end(), {name, 0, 0});
  row->seconds = std::max(row->seconds, stage.seconds);
  row->bytes += stage.bytes;
}

std::string line(const Row& row) {
  char text[160];
  if (row.bytes == 0) {
    std::snprintf(text, sizeof(text), "%-20s %10.4f\n", row.name.c_str(), row.seconds);
    return text;
  }
  const double rate = row.seconds > 0 ? static_cast<double>(row.bytes) / row.seconds / 1e9 : 0;
  std::snprintf(text, sizeof(text), "%-20s %10.4f %16llu %10.2f\n", row.name.c_str(), row.seconds,
                static_cast<unsigned long long>(row.bytes), rate);
  return text;
}

}  // namespace

std::string report_table(const std::vector<RankReport>& ranks) {
  std::vector<Row> rows;
  std::size_t updates = 0;
  for (const RankReport& rank : ranks) {
    for (const StageReport& stage : rank.setup) add(rows, stage.name, stage);
    updates = std::max(updates, rank.updates.size());
  }
  std::string summary;
  for (std::size_t i = 0; i < updates; ++i) {
    // With two updates in one report, the second one's stages are told apart.
    const std::string suffix = i == 0 ? "" : concat(" (", i + 1, ")");
    std::uint64_t workers = 0, loaded = 0, verified = 0;
    for (const RankReport& rank : ranks) {
      if (rank.updates.size() <= i) continue;
      const UpdateReport& update = rank.updates[i];
      for (const StageReport& stage : update.stages) add(rows, stage.name + suffix, stage);
      add(rows, "update" + suffix, {"", update.update_seconds, update.loaded_bytes});
      workers += update.wire.empty() ? 0 : 1;
      loaded += update.loaded_tensors;
      verified += update.verified_tensors;
    }
    summary += concat("loaded", suffix, ": ", loaded, " tensors on ", workers,
                      workers == 1 ? " worker, " : " workers, ", verified, " verified there\n");
  }
  char head[96];
  std::snprintf(head, sizeof(head), "%-20s %10s %16s %10s\n", "stage", "seconds", "bytes", "GB/s");
  std::string text = head;
  for (const Row& row : rows) text += line(row);
  return text + summary;
}

}  // namespace ckpt
