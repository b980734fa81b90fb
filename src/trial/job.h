// The workers and ranks of a run as processes.
#pragma once

#include <sys/types.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"
#include "trial/processes.h"
#include "trial/settings.h"

namespace ckpt::bench {

/// One worker for each rank. They serve one set of ranks after the other; the destructor hangs up
/// and waits for their end.
class Workers {
 public:
  static Result<Workers> start(const Settings& settings);
  Workers(Workers&&) = default;
  Workers& operator=(Workers&&) = delete;
  ~Workers();

  /// The end on which rank `rank` speaks to its worker.
  int peer_fd(int rank) const { return ends_[static_cast<std::size_t>(rank)].get(); }
  /// Empty, or what has ended before its time.
  std::string lost(pid_t pid) const;

 private:
  Workers() = default;
  std::vector<UniqueFd> ends_;
  std::map<pid_t, std::string> processes_;
};

/// Starts the ranks and returns what each has sent, in rank order, when all have ended. A rank or
/// worker that fails ends all of them; with Settings::dies, the end of that rank is none.
Result<std::vector<nlohmann::json>> run_ranks(Settings settings, const Workers& workers);

}  // namespace ckpt::bench
