#include "trial/processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/strings.h"

namespace ckpt::bench {

Status LineChannel::send(const std::string& line) {
  const std::string bytes = line + "\n";
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("sending to another process of the run", errno);
    done += static_cast<std::size_t>(n);
  }
  return Status();
}

Result<std::string> LineChannel::receive(Deadline deadline) {
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    CKPT_ASSIGN_OR_RETURN(const bool readable, wait_readable(fd_.get(), deadline));
    if (!readable) return deadline_exceeded("another process of the run does not answer");
    char bytes[4096];
    const ssize_t n = ::read(fd_.get(), bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return peer_lost("another process of the run has ended");
    buffer_.append(bytes, static_cast<std::size_t>(n));
  }
}

Result<std::pair<UniqueFd, UniqueFd>> make_socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return errno_error("socketpair", errno);
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

Result<pid_t> start_program(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment,
                            const std::vector<int>& keep) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return errno_error("fork", errno);
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (int fd = 3; fd < 1024; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  for (const int fd : keep) ::fcntl(fd, F_SETFD, 0);
  for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

Result<int> free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return errno_error("finding a free port", errno);
  }
  return ntohs(address.sin_port);
}

}  // namespace ckpt::bench
