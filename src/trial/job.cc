#include "trial/job.h"

#include <signal.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "base/host.h"
#include "base/strings.h"

namespace ckpt::bench {
namespace {

std::vector<std::string> environment_of(const Settings& settings, int rank) {
  std::vector<std::string> environment;
  if (settings.isolate) {
    environment.push_back(concat("CUDA_VISIBLE_DEVICES=", rank % settings.gpus));
  }
  if (settings.hosts > 1) environment.push_back(concat("PS_HOST_ID=host-", rank % settings.hosts));
  return environment;
}

std::vector<std::string> command_of(const std::string& program, const Settings& settings) {
  std::vector<std::string> command = split(program, ' ');
  for (std::string& argument : to_arguments(settings)) command.push_back(std::move(argument));
  return command;
}

std::string text_of(int outcome) {
  return WIFSIGNALED(outcome) ? concat("signal ", WTERMSIG(outcome))
                              : concat("exit code ", WEXITSTATUS(outcome));
}

/// Waits for all ranks; the first process that fails ends the ranks.
Status wait_for(std::map<pid_t, int> ranks, const Workers& workers, int may_die) {
  Status status;
  while (!ranks.empty()) {
    int outcome = 0;
    const pid_t pid = ::waitpid(-1, &outcome, 0);
    const auto rank = ranks.find(pid);
    const std::string who = rank == ranks.end() ? workers.lost(pid) : concat("rank ", rank->second);
    const bool expected =
        rank != ranks.end() &&
        ((WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) || rank->second == may_die);
    if (rank != ranks.end()) ranks.erase(rank);
    if (expected || who.empty() || !status.is_ok()) continue;
    status = peer_error(concat(who, " ended with ", text_of(outcome)));
    for (const auto& [other, number] : ranks) ::kill(other, SIGKILL);
  }
  return status;
}

}  // namespace

Result<Workers> Workers::start(const Settings& settings) {
  Workers workers;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    CKPT_ASSIGN_OR_RETURN(auto pair, make_socket_pair());
    Settings own = settings;
    own.role = "worker";
    own.rank = rank;
    own.peer_fd = pair.second.get();
    CKPT_ASSIGN_OR_RETURN(
        const pid_t pid,
        start_program(command_of(settings.worker.empty() ? settings.program : settings.worker, own),
                      environment_of(settings, rank), {own.peer_fd}));
    workers.processes_[pid] = concat("worker ", rank);
    workers.ends_.push_back(std::move(pair.first));
  }
  return workers;
}

Workers::~Workers() {
  ends_.clear();
  for (const auto& [pid, name] : processes_) ::waitpid(pid, nullptr, 0);
}

std::string Workers::lost(pid_t pid) const {
  const auto worker = processes_.find(pid);
  return worker == processes_.end() ? "" : worker->second;
}

Result<std::vector<nlohmann::json>> run_ranks(Settings settings, const Workers& workers) {
  CKPT_ASSIGN_OR_RETURN(const int port, free_port());
  settings.role = "rank";
  settings.rendezvous = concat("127.0.0.1:", port);
  CKPT_ASSIGN_OR_RETURN(const int reader_port, free_port());
  settings.reader_rendezvous = concat("127.0.0.1:", reader_port);
  settings.job = concat("gpu-update-", random_id());
  std::map<pid_t, int> ranks;
  std::vector<LineChannel> results;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    CKPT_ASSIGN_OR_RETURN(auto result, make_socket_pair());
    settings.rank = rank;
    settings.peer_fd = workers.peer_fd(rank);
    settings.result_fd = result.second.get();
    CKPT_ASSIGN_OR_RETURN(const pid_t pid, start_program(command_of(settings.program, settings),
                                                         environment_of(settings, rank),
                                                         {settings.peer_fd, settings.result_fd}));
    ranks[pid] = rank;
    results.emplace_back(std::move(result.first));
  }
  CKPT_RETURN_IF_ERROR(
      wait_for(std::move(ranks), workers, settings.dies ? settings.kill_rank : -1));
  std::vector<nlohmann::json> all;
  for (LineChannel& result : results) {
    CKPT_ASSIGN_OR_RETURN(const std::string line, result.receive(Deadline::after_seconds(1)));
    all.push_back(nlohmann::json::parse(line));
  }
  return all;
}

}  // namespace ckpt::bench
