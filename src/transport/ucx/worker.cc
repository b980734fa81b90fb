#include "transport/ucx/worker.h"

#include <ucp/api/ucp.h>

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "transport/ucx/wire_ids.h"

namespace ckpt::ucx {
namespace {

/// Progress calls between two looks at other work while data flows.
constexpr int kProgressBurst = 64;

/// Ends the connection of a greeting that nobody believes. Nothing of what the sender says of
/// itself is used for that; UCX owns its way back and forgets it with the sender.
void refuse(ucp_ep_h way_back, std::uint64_t connection, const Status& why) {
  auto bytes = std::make_unique<std::vector<std::byte>>(
      encode_message({connection, 0, Refusal{0, why.code(), why.message()}}));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.user_data = bytes.get();
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* user_data) {
    const std::unique_ptr<std::vector<std::byte>> sent(
        static_cast<std::vector<std::byte>*>(user_data));
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(way_back, kMessageId, nullptr, 0, bytes->data(), bytes->size(), &param);
  if (UCS_PTR_IS_PTR(request)) bytes.release();  // the callback owns it
}

}  // namespace

void Arrival::receive(void* destination, bool on_gpu, Done done) {
  received_ = true;
  worker_.receive(data_, destination, bytes_, on_gpu, std::move(done));
}

Result<std::unique_ptr<Worker>> Worker::create(std::shared_ptr<Context> context,
                                               const WorkerHandlers& handlers) {
  std::unique_ptr<Worker> worker(new Worker(std::move(context), handlers));
  CKPT_RETURN_IF_ERROR(worker->open());
  return worker;
}

Status Worker::open() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context_->get(), &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return unsupported(concat("ucx has no usable transport: ", ucs_text(status),
                              "; check UCX_TLS and UCX_NET_DEVICES"));
  }
  CKPT_RETURN_IF_ERROR(set_handlers());
  status = ucp_worker_get_efd(worker_, &fd_);
  if (status != UCS_OK) {
    return unsupported(concat("ucx cannot wait for events: ", ucs_text(status)));
  }
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return unsupported(concat("ucx has no address: ", ucs_text(status)));
  const auto* data = reinterpret_cast<const std::byte*>(address);
  address_.assign(data, data + bytes);
  ucp_worker_release_address(worker_, address);
  return Status::ok();
}

Status Worker::set_handlers() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.arg = this;
  param.id = kMessageId;
  param.cb = [](void* self, const void*, std::size_t, void* data, std::size_t bytes,
                const ucp_am_recv_param_t* receive) {
    if (receive->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) return UCS_OK;  // not one of ours: dropped
    const bool can_reply = (receive->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    static_cast<Worker*>(self)->on_message({static_cast<const std::byte*>(data), bytes},
                                           can_reply ? receive->reply_ep : nullptr);
    return UCS_OK;
  };
  ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &param);
  param.id = kDataId;
  param.cb = [](void* self, const void* header, std::size_t header_bytes, void* data,
                std::size_t bytes, const ucp_am_recv_param_t* receive) {
    auto* worker = static_cast<Worker*>(self);
    if (header_bytes != sizeof(DataHeader)) return UCS_OK;
    DataHeader copy;
    std::memcpy(&copy, header, sizeof(copy));
    Arrival arrival(*worker, copy, data, bytes,
                    (receive->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
    worker->handlers_.on_data(arrival);
    return arrival.received() ? UCS_INPROGRESS : UCS_OK;
  };
  if (status == UCS_OK) status = ucp_worker_set_am_recv_handler(worker_, &param);
  if (status == UCS_OK) return Status::ok();
  return unsupported(concat("this ucx has no active messages: ", ucs_text(status)));
}

void Worker::on_message(std::span<const std::byte> bytes, ucp_ep* way_back) {
  Result<Message> message = decode_message(bytes);
  if (!message.is_ok()) {
    log_warning("transport: ", message.status().message());
    return;
  }
  if (const auto* hello = std::get_if<Hello>(&message->body)) {
    if (const Status refused = handlers_.check_hello(*hello); !refused.is_ok()) {
      log_debug("transport: ", hello->label, " is refused: ", refused.message());
      if (way_back != nullptr) refuse(way_back, message->connection, refused);
      return;
    }
  }
  handlers_.on_message(std::move(message).value());
}

Worker::~Worker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  for (Receive* receive : receives_) {
    receive->done(unavailable("the connection was closed"));
    delete receive;
  }
}

bool Worker::progress() {
  bool worked = false;
  for (int i = 0; i < kProgressBurst && ucp_worker_progress(worker_) != 0; ++i) worked = true;
  return worked;
}

bool Worker::arm() { return ucp_worker_arm(worker_) == UCS_OK; }

void Worker::receive(void* data, void* destination, std::uint64_t bytes, bool on_gpu,
                     Arrival::Done done) {
  auto receive = std::make_unique<Receive>(Receive{*this, std::move(done)});
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = on_gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  param.user_data = receive.get();
  param.cb.recv_am = [](void* request, ucs_status_t status, std::size_t /*bytes*/,
                        void* user_data) {
    const std::unique_ptr<Receive> ended(static_cast<Receive*>(user_data));
    ended->worker.receives_.erase(ended.get());
    ended->done(status == UCS_OK ? Status::ok() : unavailable(ucs_text(status)));
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, data, destination, bytes, &param);
  if (request == nullptr) {
    receive->done(Status::ok());
  } else if (UCS_PTR_IS_ERR(request)) {
    receive->done(unavailable(ucs_text(UCS_PTR_STATUS(request))));
  } else {
    receives_.insert(receive.release());  // the callback owns it
  }
}

}  // namespace ckpt::ucx
