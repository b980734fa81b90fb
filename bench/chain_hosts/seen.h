// What one host saw of one move of the bytes.
#pragma once

#include <string>

namespace ckpt::bench {

/// Bytes through the interfaces of this network namespace, without the loopback.
struct LinkBytes {
  double in = 0, out = 0;

  static LinkBytes now();
};

/// Seconds of this process on processors, of all its threads.
double cpu_seconds();

struct Seen {
  double seconds = 0, prepare_seconds = 0, cpu_seconds = 0;
  double in = 0, out = 0;            ///< bytes over this host's link
  double must_in = 0, must_out = 0;  ///< what must go over it

  std::string to_text() const;
  static Seen from_text(const std::string& text);
};

}  // namespace ckpt::bench
