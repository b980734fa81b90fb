#include "collective/nccl/nccl_rounds.h"

#include <map>

namespace ckpt {
namespace {

struct Stream {
  std::vector<std::uint32_t> pulls;
  std::size_t next = 0;
};

}  // namespace

std::vector<NcclRound> nccl_rounds(const Plan& plan, const Schedule& schedule) {
  std::map<int, Stream> streams;  // by rank
  std::vector<std::uint32_t> left(plan.buckets.size(), 0);
  std::size_t total = 0;
  for (std::uint32_t i = 0; i < schedule.pull.size(); ++i) {
    const Pull& pull = schedule.pull[i];
    if (pull.kind != StreamKind::kFill) continue;
    streams[pull.rank].pulls.push_back(i);
    ++left[pull.chunk.bucket];
    ++total;
  }
  std::vector<NcclRound> rounds;
  std::int32_t first_unfinished = 0;
  const auto skip_finished = [&] {
    while (first_unfinished < static_cast<std::int32_t>(left.size()) &&
           left[static_cast<std::size_t>(first_unfinished)] == 0) {
      ++first_unfinished;
    }
  };
  for (std::size_t done = 0; done < total;) {
    skip_finished();
    NcclRound round;
    for (auto& [rank, stream] : streams) {
      if (stream.next == stream.pulls.size()) continue;
      const std::uint32_t index = stream.pulls[stream.next];
      const std::uint32_t bucket = schedule.pull[index].chunk.bucket;
      if (plan.buckets[bucket].reuse_after >= first_unfinished) continue;
      round.push_back(index);
      ++stream.next;
    }
    for (const std::uint32_t index : round) --left[schedule.pull[index].chunk.bucket];
    done += round.size();
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace ckpt
