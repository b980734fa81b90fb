#include "collective/nccl/nccl_api.h"

#include "base/dynamic_library.h"
#include "base/strings.h"

namespace ckpt {
namespace {

constexpr int kOldestVersion = 21700;

template <typename Function>
Status bind(const DynamicLibrary& library, const char* symbol, Function*& function) {
  CKPT_ASSIGN_OR_RETURN(function, library.function<Function>(symbol));
  return Status();
}

}  // namespace

Result<std::shared_ptr<const NcclApi>> load_nccl() {
  auto library = DynamicLibrary::open({"libnccl.so.2"});
  if (!library) {
    return library.status().with_context(
        "collective nccl needs NCCL; put the folder of libnccl.so.2 (of the package nvidia-nccl, "
        "for one) into LD_LIBRARY_PATH, or use --collective peer");
  }
  auto api = std::make_shared<NcclApi>();
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGetVersion", api->get_version));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGetUniqueId", api->get_unique_id));
  int version = 0;
  if (api->get_version(&version) != kNcclSuccess || version < kOldestVersion) {
    return unsupported(
        concat(library->name(), " has version ", version,
               "; 2.17 is the first whose communicators are non-blocking and limited in size"));
  }
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclCommInitRankConfig", api->comm_init_rank_config));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclCommGetAsyncError", api->comm_get_async_error));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclCommFinalize", api->comm_finalize));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclCommDestroy", api->comm_destroy));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclCommAbort", api->comm_abort));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGroupStart", api->group_start));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGroupEnd", api->group_end));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclBroadcast", api->broadcast));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGetErrorString", api->get_error_string));
  CKPT_RETURN_IF_ERROR(bind(*library, "ncclGetLastError", api->get_last_error));
  api->works_on_host_memory = library->function<void()>("ncclWorksOnHostMemory").is_ok();
  return std::shared_ptr<const NcclApi>(std::move(api));
}

}  // namespace ckpt
