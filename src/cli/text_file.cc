#include "cli/text_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "base/strings.h"

namespace ckpt {

Result<std::string> read_text_file(const std::string& path) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> file(std::fopen(path.c_str(), "re"),
                                                                &std::fclose);
  if (file == nullptr) return errno_error(path, errno);
  std::string text;
  char buffer[65536];
  std::size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    text.append(buffer, count);
  }
  if (std::ferror(file.get()) != 0) return errno_error(path, errno);
  return text;
}

Status write_text_file(const std::string& path, std::string_view text) {
  const std::string fresh = concat(path, ".", ::getpid(), ".new");
  std::FILE* const file = std::fopen(fresh.c_str(), "we");
  if (file == nullptr) return errno_error(path, errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (written && closed && std::rename(fresh.c_str(), path.c_str()) == 0) return Status::ok();
  const Status error = errno_error(path, errno);
  ::unlink(fresh.c_str());
  return error;
}

}  // namespace ckpt
