// The fake as a libnccl.so.2: for tests of what loads NCCL itself. A program that is linked with it
// has it loaded, and works its verbs of damage (fake_nccl.h).
#include "collective/testing/fake_nccl.h"

namespace {

const ckpt::NcclApi& fake() {
  static const auto api = ckpt::testing::fake_nccl();
  return *api;
}

}  // namespace

using ckpt::NcclConfig;
using ckpt::NcclHandle;
using ckpt::NcclUniqueId;

extern "C" {

/// What load_nccl looks for.
void ncclWorksOnHostMemory() {}

int ncclGetVersion(int* version) { return fake().get_version(version); }
int ncclGetUniqueId(NcclUniqueId* id) { return fake().get_unique_id(id); }
int ncclCommInitRankConfig(NcclHandle* comm, int ranks, NcclUniqueId id, int rank,
                           NcclConfig* config) {
  return fake().comm_init_rank_config(comm, ranks, id, rank, config);
}
int ncclCommGetAsyncError(NcclHandle comm, int* result) {
  return fake().comm_get_async_error(comm, result);
}
int ncclCommFinalize(NcclHandle comm) { return fake().comm_finalize(comm); }
int ncclCommDestroy(NcclHandle comm) { return fake().comm_destroy(comm); }
int ncclCommAbort(NcclHandle comm) { return fake().comm_abort(comm); }
int ncclGroupStart() { return fake().group_start(); }
int ncclGroupEnd() { return fake().group_end(); }
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root,
                  NcclHandle comm, void* stream) {
  return fake().broadcast(from, to, count, type, root, comm, stream);
}
const char* ncclGetErrorString(int result) { return fake().get_error_string(result); }
const char* ncclGetLastError(NcclHandle comm) { return fake().get_last_error(comm); }
}
