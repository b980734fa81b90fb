#include "transport/ucx/context.h"

#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <ucs/memory/memory_type.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/env.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/network/network_devices.h"
#include "transport/read_plan.h"
#include "transport/ucx/pieces.h"

namespace ckpt::ucx {
namespace {

ucs_log_func_rc_t log_to_engine(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                                ucs_log_level_t level, const ucs_log_component_config_t* config,
                                const char* format, va_list arguments) {
  if (level > config->log_level) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  va_list copy;
  va_copy(copy, arguments);
  std::vsnprintf(text, sizeof(text), format, copy);
  va_end(copy);
  // An error of UCX is one peer's trouble, which a Status reports; fatal ones end the process.
  log_line(level <= UCS_LOG_LEVEL_FATAL ? LogLevel::kError : LogLevel::kDebug,
           concat("ucx: ", text));
  return level <= UCS_LOG_LEVEL_FATAL ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

/// UCX prints to stdout and takes over fatal signals when it is loaded. Both belong to the host
/// process, unless the user asked for it in UCX's own variables.
void restrain_ucx_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!env_string("UCX_LOG_LEVEL") && !env_string("UCX_LOG_FILE")) {
      ucs_log_push_handler(log_to_engine);
    }
    if (!env_string("UCX_HANDLE_ERRORS") && !env_string("UCX_ERROR_SIGNALS")) {
      for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    }
  });
}

struct ConfigCloser {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ConfigCloser>;

Status set(const Config& config, const char* name, const std::string& value) {
  const std::string variable = concat("UCX_", name);
  if (env_string(variable.c_str())) return Status::ok();  // the user's word wins
  const ucs_status_t status = ucp_config_modify(config.get(), name, value.c_str());
  if (status == UCS_OK) return Status::ok();
  return invalid_argument(concat("ucx refuses ", variable, "=", value, ": ", ucs_text(status)));
}

/// Room for kEagerBytes behind the headers of UCX.
constexpr const char* kTcpSegment = "260K";
static_assert(kEagerBytes == 256 << 10);

/// "mlx5_0:1", and no interface.
bool is_rdma(const std::string& device) {
  std::error_code error;
  return !std::filesystem::exists("/sys/class/net/" + device, error);
}

/// Whether data goes over TCP: there is no RDMA device with an active port, or none that is asked
/// for.
bool only_tcp(const UcxOptions& options) {
  const std::string devices = env_string("UCX_NET_DEVICES").value_or(options.net_devices);
  if (devices.empty() || devices == "all") {
    return std::ranges::all_of(
        rdma_devices("/sys"), [](const RdmaDevice& device) { return device.active_ports.empty(); });
  }
  const std::vector<std::string> names = split(devices, ',');
  return std::ranges::none_of(names, is_rdma);
}

/// Without these TCP sends 8 KiB at a time. Not worth failing for.
void set_tcp_segments(const Config& config) {
  unsigned major = 0, minor = 0, patch = 0;
  ucp_get_version(&major, &minor, &patch);
  // Before 1.17 options of a transport are matched without its prefix.
  const bool prefixed = std::pair(major, minor) >= std::pair(1u, 17u);
  for (const char* name : {"TCP_TX_SEG_SIZE", "TCP_RX_SEG_SIZE"}) {
    if (env_string(concat("UCX_", name).c_str())) continue;
    const char* key = prefixed ? name : name + std::strlen("TCP_");
    if (ucp_config_modify(config.get(), key, kTcpSegment) != UCS_OK) {
      log_debug("transport: ucx ", major, ".", minor, " refuses ", name);
    }
  }
}

Status configure(const Config& config, const UcxOptions& options) {
  // Also between processes of one host data goes over TCP, and ranks that act as several hosts
  // share no memory behind it. UCX offers shared memory there (mm), but both sides must run for
  // every 8 KiB of it: on a busy host that is slower than the loopback, a death is noticed by
  // polling only, and the queues lie in /dev/shm. Its cma takes no part where peer failures are
  // handled.
  CKPT_RETURN_IF_ERROR(set(config, "TLS", "^shm,self"));
  if (!options.net_devices.empty()) {
    CKPT_RETURN_IF_ERROR(set(config, "NET_DEVICES", options.net_devices));
  }
  // Without it the data of a read goes over two of them at most.
  const auto rails = std::ranges::count_if(split(options.net_devices, ','), is_rdma);
  if (rails > 2)
    CKPT_RETURN_IF_ERROR(set(config, "MAX_RNDV_RAILS", concat(std::min<long>(rails, 8))));
  CKPT_RETURN_IF_ERROR(set(config, "KEEPALIVE_INTERVAL", "2s"));
  // When a peer dies while its socket is written to, TCP of UCX (1.13 to 1.18 at least) completes a
  // zero-copy send twice and aborts the process. Copied sends of large segments are as fast.
  CKPT_RETURN_IF_ERROR(set(config, "ZCOPY_THRESH", "inf"));
  set_tcp_segments(config);
  return Status::ok();
}

}  // namespace

std::string ucs_text(int ucs_status) {
  return ucs_status_string(static_cast<ucs_status_t>(ucs_status));
}

Result<std::shared_ptr<Context>> Context::create(const UcxOptions& options) {
  restrain_ucx_once();
  ucp_config_t* raw = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw);
  if (status != UCS_OK) {
    return unsupported(concat("ucx cannot read its configuration: ", ucs_text(status),
                              "; check the UCX_* variables of the environment"));
  }
  const Config config(raw);
  CKPT_RETURN_IF_ERROR(configure(config, options));
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // memory is registered on the callers' threads
  params.name = "checkpoint_engine";
  ucp_context_h context = nullptr;
  status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) {
    return unsupported(concat("ucx has no usable transport: ", ucs_text(status),
                              "; check UCX_TLS, UCX_NET_DEVICES and the devices given (",
                              quoted(options.net_devices), ")"));
  }
  std::shared_ptr<Context> made(new Context(context));
  const bool tcp = only_tcp(options);
  made->read_grain_ = options.read_grain > 0 ? options.read_grain : tcp ? kEagerBytes : kReadGrain;
  CKPT_RETURN_IF_ERROR(made->find_memory_kinds(tcp));
  return made;
}

Status Context::find_memory_kinds(bool only_tcp) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t status = ucp_context_query(context_, &attributes);
  if (status != UCS_OK) return unsupported(concat("ucx cannot be queried: ", ucs_text(status)));
  for (int kind = 0; kind < UCS_MEMORY_TYPE_LAST; ++kind) {
    if ((attributes.memory_types & UCS_BIT(kind)) != 0) {
      memory_kinds_.emplace_back(ucs_memory_type_names[kind]);
    }
  }
  CKPT_ASSIGN_OR_RETURN(const auto wish, env_bool("PS_READ_INTO_GPU"));
  if ((attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0) {
    reads_into_gpus_ = unsupported("this UCX was built without CUDA, or has none here");
  } else if (wish && !*wish) {
    reads_into_gpus_ = unsupported("PS_READ_INTO_GPU says so");
  } else if (only_tcp && !wish) {
    reads_into_gpus_ = unsupported("what arrives over TCP lies in host memory anyway");
  }
  return Status();
}

Context::~Context() { ucp_cleanup(context_); }

Result<std::vector<ucp_mem*>> Context::pin(void* data, std::uint64_t bytes) {
  return map(data, bytes, false);
}

Result<std::vector<ucp_mem*>> Context::pin_gpu_memory(void* data, std::uint64_t bytes) {
  CKPT_RETURN_IF_ERROR(reads_into_gpus_);
  return map(data, bytes, true);
}

Result<std::vector<ucp_mem*>> Context::map(void* data, std::uint64_t bytes, bool on_gpu) {
  Pieces pieces = map_in_pieces(
      static_cast<std::byte*>(data), bytes,
      [&](std::byte* piece, std::uint64_t size, ucp_mem** handle) -> int {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
        params.address = piece;
        params.length = size;
        if (on_gpu) {
          params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
          params.memory_type = UCS_MEMORY_TYPE_CUDA;
        }
        return ucp_mem_map(context_, &params, handle);
      },
      [&](ucp_mem* piece) { unpin({piece}); });
  if (pieces.status == UCS_OK) return std::move(pieces.handles);
  return resource_exhausted(concat(
      "cannot register ", format_bytes(bytes),
      " with the network device: ", ucs_text(pieces.status), " after ", format_bytes(pieces.bytes),
      on_gpu ? "; is nvidia-peermem loaded?" : "; raise the limit of locked memory (ulimit -l)"));
}

void Context::unpin(const std::vector<ucp_mem*>& pieces) {
  for (ucp_mem* piece : pieces) {
    if (const ucs_status_t status = ucp_mem_unmap(context_, piece); status != UCS_OK) {
      log_warning("ucx cannot unregister memory: ", ucs_text(status));
    }
  }
}

}  // namespace ckpt::ucx
