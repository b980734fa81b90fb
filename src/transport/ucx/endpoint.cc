#include "transport/ucx/endpoint.h"

#include <ucp/api/ucp.h>

#include <utility>

#include "base/strings.h"
#include "transport/read_plan.h"
#include "transport/ucx/wire_ids.h"

namespace ckpt::ucx {
namespace {

/// Version and flags, and the name of the worker.
constexpr std::size_t kShortestAddress = 1 + sizeof(std::uint64_t);
constexpr std::uint8_t kAddressVersionMask = 0xf;
constexpr std::uint8_t kLastAddressVersion = 1;  // ucp_object_version_t counts from 0
/// UCX is not told where an address ends: one that was cut leads it into zeros.
constexpr std::size_t kAddressPadding = 1024;

/// UCX ends the process when it meets a version that it does not know.
Result<std::vector<std::byte>> padded_address(std::span<const std::byte> address) {
  if (address.size() < kShortestAddress ||
      (static_cast<std::uint8_t>(address[0]) & kAddressVersionMask) > kLastAddressVersion) {
    return protocol_error(concat("these ", address.size(), " bytes are no address of ucx"));
  }
  std::vector<std::byte> padded(address.begin(), address.end());
  padded.resize(address.size() + kAddressPadding);
  return padded;
}

}  // namespace

struct Endpoint::State {
  Progress& progress;
  std::shared_ptr<Worker> worker;
  ucp_ep_h ep = nullptr;
  Failed failed;
  bool broken = false;
  bool closed = false;
};

/// What UCX reads until a send has completed.
struct Endpoint::Outgoing {
  Progress& progress;
  DataHeader header;
  std::vector<std::byte> owned;
  Done done;

  void complete(bool sent) {
    if (done) progress.defer([done = std::move(done), sent] { done(sent); });
  }
};

Result<std::unique_ptr<Endpoint>> Endpoint::connect(Progress& progress,
                                                    std::shared_ptr<Worker> worker,
                                                    std::span<const std::byte> address,
                                                    Failed failed) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::byte> padded, padded_address(address));
  auto state =
      std::make_shared<State>(State{progress, std::move(worker), nullptr, std::move(failed)});
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = state.get();
  params.err_handler.cb = [](void* argument, ucp_ep_h, ucs_status_t status) {
    auto* broken = static_cast<State*>(argument);
    if (std::exchange(broken->broken, true) || broken->closed) return;
    broken->progress.defer(
        [failed = std::move(broken->failed), status] { failed(ucs_text(status)); });
  };
  const ucs_status_t status = ucp_ep_create(state->worker->get(), &params, &state->ep);
  if (status != UCS_OK) return unavailable(concat("no route: ", ucs_text(status)));
  progress.count_endpoint(+1);
  progress.activate(state->worker);
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(state)));
}

Endpoint::~Endpoint() { close(); }

void Endpoint::submit(unsigned id, std::unique_ptr<Outgoing> outgoing, const void* data,
                      std::uint64_t bytes, unsigned flags) {
  if (state_->closed || state_->broken) {
    outgoing->complete(false);
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  param.user_data = outgoing.get();
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    const std::unique_ptr<Outgoing> sent(static_cast<Outgoing*>(user_data));
    sent->complete(status == UCS_OK);
    ucp_request_free(request);
  };
  state_->progress.activate(state_->worker);
  const std::size_t header_bytes = id == kDataId ? sizeof(DataHeader) : 0;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(state_->ep, id, &outgoing->header, header_bytes, data, bytes, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    outgoing->complete(request == nullptr);
    return;
  }
  outgoing.release();  // the callback owns it
}

void Endpoint::send(const Message& message, Done done) {
  auto outgoing = std::make_unique<Outgoing>(
      Outgoing{state_->progress, {}, encode_message(message), std::move(done)});
  const std::vector<std::byte>& bytes = outgoing->owned;
  // Who greets can be refused without a look at the address in the greeting.
  const unsigned reply = std::holds_alternative<Hello>(message.body) ? UCP_AM_SEND_FLAG_REPLY : 0;
  submit(kMessageId, std::move(outgoing), bytes.data(), bytes.size(),
         UCP_AM_SEND_FLAG_EAGER | reply);
}

void Endpoint::send_data(const DataHeader& header, const void* data, std::uint64_t bytes,
                         Done done) {
  submit(kDataId,
         std::make_unique<Outgoing>(Outgoing{state_->progress, header, {}, std::move(done)}), data,
         bytes, bytes <= kEagerBytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
}

void Endpoint::send_copy(const DataHeader& header, std::vector<std::byte> data) {
  auto outgoing =
      std::make_unique<Outgoing>(Outgoing{state_->progress, header, std::move(data), {}});
  const std::vector<std::byte>& bytes = outgoing->owned;
  submit(kDataId, std::move(outgoing), bytes.data(), bytes.size(), UCP_AM_SEND_FLAG_EAGER);
}

void Endpoint::close() {
  if (std::exchange(state_->closed, true)) return;
  state_->failed = {};
  state_->progress.activate(state_->worker);
  // The error handler may run until the close has ended, so the state lives as long; and the last
  // word on the worker must not fall inside UCX.
  auto keep = std::make_unique<std::shared_ptr<State>>(state_);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = keep.get();
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* user_data) {
    const std::unique_ptr<std::shared_ptr<State>> last(
        static_cast<std::shared_ptr<State>*>(user_data));
    closed(*last);
    ucp_request_free(request);
  };
  const ucs_status_ptr_t request = ucp_ep_close_nbx(state_->ep, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    closed(state_);
    return;
  }
  keep.release();  // the callback owns it
}

void Endpoint::closed(const std::shared_ptr<State>& state) {
  state->progress.count_endpoint(-1);
  state->progress.defer([state] { state->worker.reset(); });
}

}  // namespace ckpt::ucx
