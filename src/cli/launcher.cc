#include "cli/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/deadline.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/rank_process.h"

namespace ckpt {
namespace {

/// Our environment with `changes` ("NAME=value") in it.
std::vector<std::string> environment_with(const std::vector<std::string>& changes) {
  const auto name_of = [](std::string_view entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> all = changes;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return name_of(change) == name_of(*entry);
    });
    if (!changed) all.emplace_back(*entry);
  }
  return all;
}

std::string how_it_ended(int code) {
  if (code <= 128) return concat("ended with exit code ", code);
  return concat("was ended by signal ", code - 128, " (", ::strsignal(code - 128), ")");
}

/// The ranks of one launch. One thread.
class Ranks {
 public:
  Ranks(const LaunchOptions& options, StopSignals& signals)
      : options_(options), signals_(signals) {}

  Status start() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      std::vector<std::string> changes = options_.environment;
      changes.push_back(concat("RANK=", rank));
      changes.push_back(concat("LOCAL_RANK=", rank));
      changes.push_back(concat("WORLD_SIZE=", options_.ranks));
      changes.push_back(concat("LOCAL_WORLD_SIZE=", options_.ranks));
      CKPT_ASSIGN_OR_RETURN(RankProcess process,
                            RankProcess::start(rank, options_.argv, environment_with(changes),
                                               /*capture=*/rank > 0, signals_.mask_before()));
      processes_.push_back(std::move(process));
    }
    return Status::ok();
  }

  int wait() {
    while (std::any_of(processes_.begin(), processes_.end(),
                       [](const auto& process) { return process.running(); })) {
      wait_for_news();
      while (const auto signal = signals_.take()) handle(*signal);
      reap();
      if (limit_.expired()) end_the_rest();
    }
    for (auto& process : processes_) process.forward_output();
    return stopped_by_ != 0 ? 128 + stopped_by_ : exit_code_;
  }

 private:
  void wait_for_news() {
    std::vector<pollfd> waits = {{signals_.fd(), POLLIN, 0}};
    for (const auto& process : processes_) {
      if (process.output_fd() >= 0) waits.push_back({process.output_fd(), POLLIN, 0});
    }
    ::poll(waits.data(), waits.size(), limit_.poll_ms());
    for (auto& process : processes_) process.forward_output();
  }

  void handle(const StopSignals::Signal& signal) {
    if (signal.number == SIGCHLD) return;
    // Of a job that has failed already, the failure is what counts.
    if (exit_code_ == 0) stopped_by_ = signal.number;
    if (!signal.from_terminal) send_all(signal.number);
    limit();
  }

  void reap() {
    for (auto& process : processes_) {
      const auto code = process.reap();
      if (!code || *code == 0) continue;
      if (exit_code_ == 0) {
        exit_code_ = *code;
        limit();
      }
      // A rank that exits says why itself; one that was killed, or never ran (127), cannot.
      if (*code >= 127 && stopped_by_ == 0 && !ending_) {
        log_error("rank ", process.rank(), " ", how_it_ended(*code));
      }
    }
  }

  void limit() {
    if (!limited_) limit_ = Deadline::after_seconds(options_.grace_seconds);
    limited_ = true;
  }

  void end_the_rest() {
    send_all(ending_ ? SIGKILL : SIGTERM);
    ending_ = true;
    limit_ = Deadline::after_seconds(options_.grace_seconds);
  }

  void send_all(int signal) {
    for (auto& process : processes_) process.send_signal(signal);
  }

  const LaunchOptions& options_;
  StopSignals& signals_;
  std::vector<RankProcess> processes_;
  bool limited_ = false;  // by the first failure or signal
  Deadline limit_ = Deadline::after_seconds(1e9);
  bool ending_ = false;
  int stopped_by_ = 0;
  int exit_code_ = 0;
};

}  // namespace

Result<int> launch_ranks(const LaunchOptions& options, StopSignals& signals) {
  Ranks ranks(options, signals);
  CKPT_RETURN_IF_ERROR(ranks.start());
  return ranks.wait();
}

}  // namespace ckpt
