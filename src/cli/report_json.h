// Reports as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint_engine/status.h"
#include "cli/rank_report.h"

namespace ckpt {

/// What a rank sends to rank 0.
std::string encode_rank_report(const RankReport& report);
/// kProtocol for anything that encode_rank_report does not write.
Result<RankReport> decode_rank_report(std::string_view text);

/// The file of --report: {"version", "world_size", "checkpoint", "total_tensors", "total_bytes",
/// "loaded_bytes", "seconds", "gb_per_s", "ranks": [...]}. A rank has its setup stages, the members
/// of UpdateReport for its last update, and "earlier_updates" where there were more. Bytes in
/// bytes, times in seconds, rates in 10^9 bytes per second.
std::string job_report_json(const std::vector<RankReport>& ranks);

/// The same file when the update failed: {"version", "error": {"code", "message", "rank"}}, where
/// the rank is the one that found the cause and is left out where nobody knows.
std::string failed_report_json(const Status& error);

}  // namespace ckpt
