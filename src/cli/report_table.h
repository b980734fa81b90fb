// Reports as a table for people.
#pragma once

#include <string>
#include <vector>

#include "cli/rank_report.h"

namespace ckpt {

/// Lines "stage  seconds  bytes  GB/s", every stage of all ranks in one: the seconds of the
/// slowest, the bytes of all, and their quotient; then one line with what was loaded and verified.
/// Pure.
std::string report_table(const std::vector<RankReport>& ranks);

}  // namespace ckpt
