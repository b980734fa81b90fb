#include "cli/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "base/strings.h"

namespace ckpt {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// Between fork and exec: nothing but calls that are safe there.
[[noreturn]] void become_rank(char* const* argv, char* const* environment, int output, int null_fd,
                              pid_t parent, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before the line above.
  if (::getppid() != parent) ::_exit(1);
  if (output >= 0) {
    ::dup2(null_fd, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::execve(argv[0], argv, environment);
  ::_exit(127);
}

}  // namespace

RankProcess::RankProcess(int rank, pid_t pid, UniqueFd output)
    : rank_(rank), pid_(pid), output_(std::move(output)) {}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : rank_(other.rank_),
      pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      partial_(std::move(other.partial_)) {}

RankProcess::~RankProcess() {
  if (!running()) return;
  send_signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Result<RankProcess> RankProcess::start(int rank, const std::vector<std::string>& argv,
                                       const std::vector<std::string>& environment, bool capture,
                                       const sigset_t& mask) {
  UniqueFd ours, theirs, null_fd;
  if (capture) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
    ::fcntl(ours.get(), F_SETFL, O_NONBLOCK);
    null_fd.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  const auto argv_pointers = pointers(argv);
  const auto environment_pointers = pointers(environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error(concat("cannot start rank ", rank), errno);
  if (pid == 0) {
    become_rank(argv_pointers.data(), environment_pointers.data(), theirs.get(), null_fd.get(),
                parent, mask);
  }
  return RankProcess(rank, pid, std::move(ours));
}

void RankProcess::send_signal(int signal) {
  if (running()) ::kill(pid_, signal);
}

std::optional<int> RankProcess::reap() {
  int status = 0;
  if (!running() || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void RankProcess::print_line(std::string_view line) const {
  const std::string text = concat("rank ", rank_, ": ", line, "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void RankProcess::forward_output() {
  if (!output_) return;
  char buffer[8192];
  ssize_t count;
  while ((count = ::read(output_.get(), buffer, sizeof(buffer))) > 0) {
    partial_.append(buffer, static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = partial_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      print_line(std::string_view(partial_).substr(begin, end - begin));
    }
    partial_.erase(0, begin);
  }
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (!partial_.empty()) print_line(partial_);
  output_.reset();
}

}  // namespace ckpt
