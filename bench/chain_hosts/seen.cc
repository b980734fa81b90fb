#include "seen.h"

#include <sys/resource.h>

#include <fstream>
#include <sstream>
#include <vector>

namespace ckpt::bench {

LinkBytes LinkBytes::now() {
  std::ifstream table("/proc/self/net/dev");
  LinkBytes sum;
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with(" lo")) continue;
    std::istringstream fields(line.substr(colon + 1));
    std::vector<double> values;
    for (double value; fields >> value;) values.push_back(value);
    if (values.size() < 9) continue;
    sum.in += values[0];
    sum.out += values[8];
  }
  return sum;
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string Seen::to_text() const {
  std::ostringstream text;
  text.precision(17);
  text << seconds << ' ' << prepare_seconds << ' ' << cpu_seconds << ' ' << in << ' ' << out << ' '
       << must_in << ' ' << must_out;
  return text.str();
}

Seen Seen::from_text(const std::string& text) {
  std::istringstream fields(text);
  Seen seen;
  fields >> seen.seconds >> seen.prepare_seconds >> seen.cpu_seconds >> seen.in >> seen.out >>
      seen.must_in >> seen.must_out;
  return seen;
}

}  // namespace ckpt::bench
