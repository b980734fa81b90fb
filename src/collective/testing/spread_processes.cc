#include "collective/testing/spread_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/strings.h"
#include "transport/testing/hex.h"

namespace ckpt::testing {
namespace {

/// How many buckets a victim takes before it says so and stands still.
constexpr std::uint32_t kBucketsOfVictim = 2;
constexpr const char* kEveryRank = "all";  // in the place of a victim: each aborts its pass

void write_line(FILE* file, const std::string& line) {
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

std::string read_line(FILE* file) {
  char* line = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = ::getline(&line, &capacity, file);
  std::string text(line, length > 0 ? static_cast<std::size_t>(length) - 1 : 0);
  std::free(line);
  return text;
}

std::string text_to_hex(const std::string& text) { return to_hex(std::as_bytes(std::span(text))); }

std::string text_from_hex(const std::string& hex) {
  const std::vector<std::byte> bytes = from_hex(hex);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

double seconds_to_end(const PassOutcome& outcome) {
  double longest = 0;
  for (const LaneOutcome& lane : outcome.lanes) {
    longest =
        std::max(longest, std::chrono::duration<double>(lane.ended - outcome.aborted).count());
  }
  return outcome.cause.is_ok() ? 0 : longest;
}

/// "<text> <stray> <cause ok> <seconds> {<code> <message>}", all texts in hex.
std::string encode(const PassOutcome& outcome) {
  std::string line = concat(text_to_hex(outcome.text()), ' ', outcome.stray_write.empty() ? 0 : 1,
                            ' ', outcome.cause.is_ok() ? 1 : 0, ' ', seconds_to_end(outcome));
  for (const LaneOutcome& lane : outcome.lanes) {
    if (!lane.spreads() || lane.status.is_ok()) continue;
    line +=
        concat(' ', static_cast<int>(lane.status.code()), ' ', text_to_hex(lane.status.message()));
  }
  return line;
}

SpreadProcesses::Outcome decode(const std::string& line) {
  SpreadProcesses::Outcome outcome;
  const std::vector<std::string> words = split(line, ' ');
  if (words.size() < 4) {
    outcome.text = "the process has ended";
    return outcome;
  }
  outcome.text = text_from_hex(words[0]);
  outcome.stray_write = words[1] == "1";
  outcome.ok = words[2] == "1";
  outcome.seconds_to_end = std::stod(words[3]);
  for (std::size_t i = 4; i + 1 < words.size(); i += 2) {
    outcome.failures.emplace_back(static_cast<StatusCode>(std::stoi(words[i])),
                                  text_from_hex(words[i + 1]));
  }
  return outcome;
}

}  // namespace

SpreadProcesses::SpreadProcesses(SpreadBackend backend, Topology topology)
    : backend_(std::move(backend)), topology_(std::move(topology)) {
  for (int rank = 0; rank < static_cast<int>(topology_.ranks.size()); ++rank) start(rank);
}

SpreadProcesses::~SpreadProcesses() {
  for (auto& [rank, process] : processes_) end(process);
}

void SpreadProcesses::start(int rank) {
  int commands[2], answers[2];
  if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) std::abort();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(commands[1]);
    ::close(answers[0]);
    // The ends of the others' pipes, so that they see the end of this test.
    for (const auto& [other, process] : processes_) {
      ::close(::fileno(process.to));
      ::close(::fileno(process.from));
    }
    serve(rank, ::fdopen(commands[0], "r"), ::fdopen(answers[1], "w"));
  }
  ::close(commands[0]);
  ::close(answers[1]);
  processes_[rank] = {pid, ::fdopen(commands[1], "w"), ::fdopen(answers[0], "r")};
}

void SpreadProcesses::end(Process& process) {
  std::fclose(process.to);
  std::fclose(process.from);
  if (process.pid > 0) {
    ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
  }
}

void SpreadProcesses::restart(int rank) {
  end(processes_.at(rank));
  processes_.erase(rank);
  start(rank);
}

void SpreadProcesses::serve(int rank, FILE* commands, FILE* answers) {
  OwnProcess own{rank,
                 [&](const std::string& mine) {
                   write_line(answers, "meet " + text_to_hex(mine));
                   std::map<int, std::string> all;
                   const std::vector<std::string> words = split(read_line(commands), ' ');
                   for (std::size_t i = 0; i + 1 < words.size(); i += 2)
                     all[std::stoi(words[i])] = text_from_hex(words[i + 1]);
                   return all;
                 },
                 passes_};
  {
    SpreadJob job(backend_, topology_, std::move(own));
    for (;;) {
      const std::vector<std::string> words = split(read_line(commands), ' ');
      if (words.size() != 2) break;
      PassOptions options;
      options.seconds = std::stod(words[0]);
      options.watch = std::chrono::milliseconds(200);
      const bool aborts = words[1] == kEveryRank;
      if (aborts || words[1] == concat(rank)) {
        options.acknowledges = [&, aborts](int, std::uint32_t bucket) {
          if (bucket < kBucketsOfVictim) return true;
          write_line(answers, "here");
          read_line(commands);
          if (aborts) job.abort(aborted("called off"));
          return false;
        };
      }
      write_line(answers, encode(job.run(options)));
    }
  }
  std::fflush(nullptr);
  ::_exit(0);
}

void SpreadProcesses::meet(const std::vector<int>& ranks) {
  std::string all;
  for (const int rank : ranks) {
    const std::vector<std::string> words = split(read_line(processes_.at(rank).from), ' ');
    if (words.size() == 2 && words[0] == "meet")
      all += concat(all.empty() ? "" : " ", rank, ' ', words[1]);
  }
  for (const int rank : ranks) write_line(processes_.at(rank).to, all);
}

std::map<int, SpreadProcesses::Outcome> SpreadProcesses::run(double seconds, ProcessFault fault) {
  ++passes_;
  std::vector<int> all, living;
  for (auto& [rank, process] : processes_) {
    all.push_back(rank);
    if (rank != fault.victim) living.push_back(rank);
    write_line(process.to, concat(seconds, ' ', fault.aborts ? kEveryRank : concat(fault.victim)));
  }
  meet(all);  // what they publish
  meet(all);  // all are connected
  if (fault.victim >= 0) {
    Process& victim = processes_.at(fault.victim);
    if (read_line(victim.from) != "here") std::abort();
    ::kill(victim.pid, fault.signal);
    int status = 0;
    ::waitpid(victim.pid, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) victim.pid = -1;
  }
  if (fault.aborts) {
    for (const int rank : all) {
      if (read_line(processes_.at(rank).from) != "here") std::abort();
    }
    for (const int rank : all) write_line(processes_.at(rank).to, "");
  }
  meet(living);  // all lanes have ended
  std::map<int, Outcome> outcomes;
  const bool stopped = fault.victim >= 0 && processes_.at(fault.victim).pid > 0;
  if (stopped) {
    ::kill(processes_.at(fault.victim).pid, SIGCONT);
    write_line(processes_.at(fault.victim).to, "");
  }
  for (const int rank : living) outcomes[rank] = decode(read_line(processes_.at(rank).from));
  if (stopped) {
    meet({fault.victim});
    outcomes[fault.victim] = decode(read_line(processes_.at(fault.victim).from));
  }
  return outcomes;
}

}  // namespace ckpt::testing
