// The functions of NCCL that we call, as a table: found in the library at run time, or a fake in
// tests. Declared here after NCCL's public ABI, so that nothing of NCCL is needed to build.
#pragma once

#include <cstddef>
#include <memory>

#include "checkpoint_engine/status.h"

namespace ckpt {

/// ncclUniqueId: made by one rank, given to all that shall join its communicator.
struct NcclUniqueId {
  char bytes[128];
};

/// ncclComm_t.
using NcclHandle = struct NcclOpaque*;

/// ncclResult_t, as far as it is told apart here.
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};

inline constexpr int kNcclInt8 = 0;  ///< ncclDataType_t: bytes

inline constexpr int kNcclUndefined = -2147483647 - 1;

/// ncclConfig_t as of NCCL 2.17, the first that can be given a number of SMs. Later versions take
/// defaults for the fields behind. NCCL_MAX_CTAS in the environment wins.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 0;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  /// SMs that a call takes from the serving engine, each with buffers in device memory. Eight move
  /// several times what a PCIe link brings.
  int max_ctas = 8;
  const char* net_name = nullptr;
};

struct NcclApi {
  int (*get_version)(int* version);
  int (*get_unique_id)(NcclUniqueId* id);
  int (*comm_init_rank_config)(NcclHandle* comm, int ranks, NcclUniqueId id, int rank,
                               NcclConfig* config);
  int (*comm_get_async_error)(NcclHandle comm, int* result);
  int (*comm_finalize)(NcclHandle comm);
  int (*comm_destroy)(NcclHandle comm);
  int (*comm_abort)(NcclHandle comm);
  int (*group_start)();
  int (*group_end)();
  int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root,
                   NcclHandle comm, void* stream);
  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(NcclHandle comm);
  /// A stand-in of tests, whose calls work on host memory.
  bool works_on_host_memory = false;
};

/// NCCL as this process has it loaded already (torch brings one), else libnccl.so.2 as the loader
/// finds it. kUnavailable when there is none; kUnsupported before 2.17.
Result<std::shared_ptr<const NcclApi>> load_nccl();

}  // namespace ckpt
