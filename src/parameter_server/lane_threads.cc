#include "parameter_server/lane_threads.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "base/strings.h"

namespace ckpt {

Status LaneThreads::start(std::string name, std::function<Status()> body,
                          std::function<std::uint64_t()> bytes) {
  auto lane = std::make_unique<Lane>();
  lane->name = std::move(name);
  lane->body = std::move(body);
  lane->bytes = std::move(bytes);
  try {
    lane->thread = std::thread([this, lane = lane.get()] { run(*lane); });
  } catch (const std::system_error& error) {
    return resource_exhausted(concat("no thread for the lane ", quoted(lane->name), ": ",
                                     error.what(), "; see the limit of processes (ulimit -u)"));
  }
  lanes_.push_back(std::move(lane));
  return Status();
}

void LaneThreads::run(Lane& lane) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    lane.status = lane.body();
  } catch (const std::exception& error) {
    lane.status = internal_error(concat("lane ", quoted(lane.name), ": ", error.what()));
  }
  lane.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!lane.status.is_ok()) on_failure_(lane.status);
}

void LaneThreads::join() {
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

Status LaneThreads::report(std::vector<StageReport>& stages) const {
  const std::size_t first = stages.size();
  for (const auto& lane : lanes_) {
    CKPT_RETURN_IF_ERROR(lane->status);
    const auto same =
        std::find_if(stages.begin() + static_cast<std::ptrdiff_t>(first), stages.end(),
                     [&](const StageReport& stage) { return stage.name == lane->name; });
    if (same == stages.end()) {
      stages.push_back({lane->name, lane->seconds, lane->bytes()});
    } else {
      same->seconds = std::max(same->seconds, lane->seconds);
      same->bytes += lane->bytes();
    }
  }
  return Status();
}

}  // namespace ckpt
