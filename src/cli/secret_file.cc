#include "cli/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/strings.h"

namespace ckpt {

Result<std::string> read_secret_file(const std::string& path) {
  if (path.empty()) return std::string();
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return errno_error(path, errno);
  if ((info.st_mode & 077) != 0) {
    return invalid_argument(concat(path, ": others may read this secret; chmod 600 it"));
  }
  char buffer[4096];
  const auto count = ::read(file.get(), buffer, sizeof(buffer));
  if (count < 0) return errno_error(path, errno);
  std::string secret(trim(std::string_view(buffer, static_cast<std::size_t>(count))));
  if (secret.empty()) return invalid_argument(concat(path, ": holds no secret"));
  return secret;
}

}  // namespace ckpt
