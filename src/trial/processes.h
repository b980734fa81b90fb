// The processes of a run, and the lines they send each other.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/status.h"

namespace ckpt::bench {

/// Lines of text over a socket. Not thread-safe.
class LineChannel {
 public:
  explicit LineChannel(UniqueFd fd) : fd_(std::move(fd)) {}
  Status send(const std::string& line);
  /// kPeerLost at the end of the stream.
  Result<std::string> receive(Deadline deadline);
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::string buffer_;
};

/// Two connected sockets that survive exec.
Result<std::pair<UniqueFd, UniqueFd>> make_socket_pair();

/// Starts a program: a path, or a name in PATH, and its arguments. `environment` (NAME=value) is
/// added; it is killed when its parent ends. Of the descriptors above 2 it keeps only `keep`.
Result<pid_t> start_program(const std::vector<std::string>& command,
                            const std::vector<std::string>& environment,
                            const std::vector<int>& keep);

/// A port of 127.0.0.1 that is free now.
Result<int> free_port();

}  // namespace ckpt::bench
