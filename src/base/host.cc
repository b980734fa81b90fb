#include "base/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "base/env.h"
#include "base/strings.h"

namespace ckpt {

std::string host_id() {
  if (const auto given = env_string("PS_HOST_ID")) return *given;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  if (!std::getline(file, boot_id)) boot_id = host_name();
  struct stat info {};
  if (::stat("/dev/shm", &info) != 0) return boot_id;
  return concat(boot_id, "-", info.st_dev);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

std::string random_id() {
  std::random_device device;
  const unsigned high = device(), low = device();
  char text[24];
  std::snprintf(text, sizeof(text), "%08x%08x", high, low);
  return text;
}

}  // namespace ckpt
