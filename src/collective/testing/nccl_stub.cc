// A libnccl.so.2 of a given version, that can be loaded and does nothing.
extern "C" {

int ncclGetVersion(int* version) {
  *version = NCCL_STUB_VERSION;
  return 0;
}
int ncclGetUniqueId() { return 0; }
int ncclCommInitRankConfig() { return 0; }
int ncclCommGetAsyncError() { return 0; }
int ncclCommFinalize() { return 0; }
int ncclCommDestroy() { return 0; }
int ncclCommAbort() { return 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
#ifndef NCCL_STUB_LACKS_BROADCAST
int ncclBroadcast() { return 0; }
#endif
int ncclGetErrorString() { return 0; }
int ncclGetLastError() { return 0; }
}
