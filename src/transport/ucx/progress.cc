#include "transport/ucx/progress.h"

#include <poll.h>
#include <pthread.h>
#include <ucp/api/ucp.h>

#include <cstring>
#include <future>

#include "base/log.h"
#include "base/strings.h"
#include "transport/ucx/wire_ids.h"

namespace ckpt::ucx {
namespace {

/// Progress calls between two looks at posted tasks and timers while data flows.
constexpr int kProgressBurst = 64;
/// How long stop() waits for connections that are being flushed or cut.
constexpr std::chrono::seconds kStopPatience{2};

struct ReceiveContext {
  Arrival::Done done;
};

void on_received(void* request, ucs_status_t status, std::size_t /*length*/, void* user_data) {
  const std::unique_ptr<ReceiveContext> context(static_cast<ReceiveContext*>(user_data));
  context->done(status == UCS_OK ? Status::ok() : unavailable(ucs_text(status)));
  ucp_request_free(request);
}

}  // namespace

void Arrival::receive(void* destination, Done done) {
  received_ = true;
  auto context = std::make_unique<ReceiveContext>(ReceiveContext{std::move(done)});
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv_am = on_received;
  param.user_data = context.get();
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, data_, destination, bytes_, &param);
  if (UCS_PTR_IS_ERR(request)) {
    context->done(unavailable(ucs_text(UCS_PTR_STATUS(request))));
    return;
  }
  if (request == nullptr) {
    context->done(Status::ok());
    return;
  }
  context.release();  // on_received owns it
}

Result<std::unique_ptr<Progress>> Progress::create(std::shared_ptr<Context> context) {
  std::unique_ptr<Progress> progress(new Progress());
  progress->context_ = std::move(context);
  CKPT_RETURN_IF_ERROR(progress->create_worker());
  return progress;
}

void Progress::start(MessageHandler on_message, DataHandler on_data) {
  on_message_ = std::move(on_message);
  on_data_ = std::move(on_data);
  thread_ = std::thread([this] { loop(); });
}

Status Progress::create_worker() {
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
  status = ucp_worker_get_efd(worker_, &worker_fd_);
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

Status Progress::set_handlers() {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.arg = this;
  param.id = kMessageId;
  param.cb = [](void* self, const void*, std::size_t, void* data, std::size_t bytes,
                const ucp_am_recv_param_t* receive) {
    auto* progress = static_cast<Progress*>(self);
    if (receive->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) return UCS_OK;  // not one of ours: dropped
    Result<Message> message = decode_message({static_cast<const std::byte*>(data), bytes});
    if (!message.is_ok()) {
      log_warning(message.status().message());
      return UCS_OK;
    }
    progress->defer([progress, owned = std::move(message).value()]() mutable {
      progress->on_message_(std::move(owned));
    });
    return UCS_OK;
  };
  ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &param);
  param.id = kDataId;
  param.cb = [](void* self, const void* header, std::size_t header_bytes, void* data,
                std::size_t bytes, const ucp_am_recv_param_t* receive) {
    auto* progress = static_cast<Progress*>(self);
    if (header_bytes != sizeof(DataHeader)) return UCS_OK;
    DataHeader copy;
    std::memcpy(&copy, header, sizeof(copy));
    Arrival arrival(progress->worker_, copy, data, bytes,
                    (receive->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
    progress->on_data_(arrival);
    return arrival.received() ? UCS_INPROGRESS : UCS_OK;
  };
  if (status == UCS_OK) status = ucp_worker_set_am_recv_handler(worker_, &param);
  if (status == UCS_OK) return Status::ok();
  return unsupported(concat("this ucx has no active messages: ", ucs_text(status)));
}

Progress::~Progress() {
  stop();
  // What was never run may own endpoints; they go before the worker.
  timers_.clear();
  deferred_.clear();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
}

bool Progress::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    posted_.push_back(std::move(task));
    if (has_posted_.exchange(true, std::memory_order_acq_rel)) return true;
  }
  wake_.set();
  return true;
}

bool Progress::run(const Task& task) {
  if (on_thread()) {
    task();
    return true;
  }
  std::promise<void> done;
  if (!post([&] {
        task();
        done.set_value();
      })) {
    return false;
  }
  done.get_future().wait();  // bounded: tasks never block
  return true;
}

void Progress::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      posted_.push_back([this] {
        stop_by_ = Deadline::after(kStopPatience);
        call_at(*stop_by_, [] {});  // ends the sleep
      });
    }
    stopping_ = true;
    has_posted_.store(true, std::memory_order_release);
  }
  wake_.set();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

Progress::TimerKey Progress::call_at(Deadline when, Task task) {
  const TimerKey key{when.when(), next_timer_++};
  timers_.emplace(key, std::move(task));
  return key;
}

bool Progress::run_ready() {
  bool worked = false;
  if (has_posted_.load(std::memory_order_acquire)) {
    std::vector<Task> tasks;
    wake_.clear();
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(posted_);
      has_posted_.store(false, std::memory_order_release);
    }
    for (Task& task : tasks) task();
    worked = true;
  }
  while (!timers_.empty() && timers_.begin()->first.first <= Deadline::Clock::now()) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
    worked = true;
  }
  while (!deferred_.empty()) {
    std::vector<Task> tasks;
    tasks.swap(deferred_);
    for (Task& task : tasks) task();
    worked = true;
  }
  return worked;
}

int Progress::poll_timeout_ms() const {
  return timers_.empty() ? -1 : Deadline::at(timers_.begin()->first.first).poll_ms();
}

void Progress::loop() {
  pthread_setname_np(pthread_self(), "ckpt-ucx");
  while (!stopped()) {
    bool worked = run_ready();
    for (int i = 0; i < kProgressBurst && ucp_worker_progress(worker_) != 0; ++i) worked = true;
    if (worked || !deferred_.empty()) continue;
    // Arming fails while events are pending: progress again before the thread may sleep.
    if (ucp_worker_arm(worker_) != UCS_OK) continue;
    pollfd fds[2] = {{worker_fd_, POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    ::poll(fds, 2, poll_timeout_ms());
  }
}

}  // namespace ckpt::ucx
