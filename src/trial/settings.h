// What one trial measures, and how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint_engine/status.h"

namespace ckpt::bench {

struct Settings {
  std::string device = "cuda";
  double gib = 1;
  int ranks = 1;
  int gpus = 1;          ///< rank i works on GPU i modulo this
  bool isolate = false;  ///< every process sees its own GPU only (CUDA_VISIBLE_DEVICES)
  int hosts = 1;         ///< rank i says that it is on host i modulo this: `chain` between them
  int tensors = 0;       ///< so many tensors of `tensor_bytes` each instead of a model of `gib`
  std::string tensor_bytes = "1MiB";
  bool experts = false;     ///< many small tensors, as in qwen3-235b-a22b
  int owners = 0;           ///< so many ranks, the first, hold the checkpoint; 0: all
  int first_recipient = 0;  ///< ranks below are not updated
  bool loaded = false;      ///< the ranks are a second job as well, which has loaded the metas of
                            ///< the first one and is updated out of its memory
  int shrink = 1;           ///< divides every dimension: small checkpoints for dry runs
  std::string ring = "0", bucket = "0", chunk = "32MiB";
  std::string collective = "auto";
  std::string overlap = "auto";
  bool keep_buffers = false;
  bool release_communicators = false;
  int updates = 5;
  int load_threads = 0;
  std::string
      worker;  ///< a command that is a worker instead of our own (bench/compare/stock_worker.py)
  int kill_rank = -1;  ///< instead of the measurements: this rank dies in an update, and the
                       ///< workers are updated by new ranks
  int failures = 0;    ///< so many updates are cancelled in the middle, before memory is compared
  bool from_device = false;  ///< registration from tensors on the device is measured too
  std::string files;      ///< a folder: registration from files in the page cache is measured too
  bool in_place = false;  ///< `files` is in /dev/shm: all updates are of files used in place there
  std::string json;       ///< a file to which the result is appended as one line

  /// NCCL on its own, too: what a communicator costs, and its rates. A GPU for each rank.
  bool nccl_ceilings = false;
  bool nccl_alone = false;  ///< only that: nothing is registered or updated
  /// What processes of a run are started as: a program that runs roles, with arguments before ours.
  std::string program = "/proc/self/exe";

  // Of the processes that a run starts.
  std::string role;  ///< empty, "rank" or "worker"
  int rank = 0;
  bool dies = false;   ///< the run's kill_rank has not died yet
  int peer_fd = -1;    ///< rank and worker speak over it
  int result_fd = -1;  ///< the rank's result goes there
  std::string rendezvous;
  std::string reader_rendezvous;  ///< with `loaded`
  std::string job;
};

inline constexpr const char* kUsage =
    "usage: gpu_update [--device cuda|host] [--gib G] [--ranks N] [--gpus M] [--isolate 1]\n"
    "                  [--ring SIZE] [--bucket SIZE] [--chunk SIZE] [--collective "
    "auto|peer|nccl|chain]\n"
    "                  [--overlap auto|on|off] [--keep-buffers 1] [--release-communicators 1]\n"
    "                  [--hosts H] [--worker COMMAND] [--kill-rank R] "
    "[--updates K]\n"
    "                  [--tensors N --tensor-bytes SIZE]\n"
    "                  [--experts 1] [--owners N] [--first-recipient R] [--loaded 1]\n"
    "                  [--failures N] [--nccl-ceilings 1] [--nccl-alone 1] [--load-threads T]\n"
    "                  [--files DIR] [--in-place 1] "
    "[--from-device 1] "
    "[--shrink D] [--json "
    "FILE]\n";

Result<Settings> parse_settings(const std::vector<std::string>& arguments);
/// Arguments from which parse_settings makes the same again.
std::vector<std::string> to_arguments(const Settings& settings);

}  // namespace ckpt::bench
