// checkpoint-engine receive: an instance of workers in C++ that take weights into their own memory.
#pragma once

#include <string>

namespace ckpt {

struct ReceiveCommand {
  int workers = 1;
  std::string listen = "127.0.0.1:19730";  ///< "host:port"; port 0: the kernel chooses
  std::string uds;                         ///< a Unix socket instead
  std::string output;                      ///< folder for what worker 0 holds, after each update
  bool output_all = false;                 ///< a sub-folder for every worker instead
  std::string expect;                      ///< checkpoint that every worker must hold afterwards
  int exit_after = 0;                      ///< end after so many successful updates; 0: never
  std::string ready_file;                  ///< written with the address once calls are taken
  double timeout_seconds = 300;
  bool verify = true;
  std::string secret_file;
  bool quiet = false;
};

/// 0 after --exit-after updates or a signal while idle; 1 when an update differs from --expect, or
/// a signal ends it in the middle of an update.
int run(const ReceiveCommand& command);

}  // namespace ckpt
