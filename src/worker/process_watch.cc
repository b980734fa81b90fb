#include "worker/process_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/strings.h"

namespace ckpt {

Result<UniqueFd> watch_process(std::int64_t pid) {
  if (pid <= 0) return unsupported("a process of another pid namespace cannot be watched");
  const long fd = ::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0);
  if (fd >= 0) return UniqueFd(static_cast<int>(fd));
  if (errno == ESRCH) return not_found(concat("process ", pid, " has ended"));
  return unsupported(errno_error(concat("pidfd_open of process ", pid), errno).message());
}

}  // namespace ckpt
