#include "parameter_server/parameter_server_impl.h"

#include <algorithm>
#include <utility>

#include "base/host.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "parameter_server/server_settings.h"
#include "worker/closer.h"

namespace ckpt {

Result<std::unique_ptr<ParameterServer>> ParameterServer::create(ParameterServerOptions options) {
  CKPT_ASSIGN_OR_RETURN(auto server, ParameterServerImpl::create(std::move(options)));
  return std::unique_ptr<ParameterServer>(std::move(server));
}

Result<UpdateReport> ParameterServer::update(const std::string& name, const EngineCall& call,
                                             const UpdateOptions& options) {
  CKPT_ASSIGN_OR_RETURN(auto prepared, prepare(name, options));
  return commit(std::move(prepared), call);
}

Result<std::unique_ptr<ParameterServerImpl>> ParameterServerImpl::create(
    ParameterServerOptions options, AbortSignal* abort) {
  auto server = std::make_unique<ParameterServerImpl>();
  CKPT_ASSIGN_OR_RETURN(server->memory_fraction_, memory_fraction(options));
  server->options_ = std::move(options);
  CKPT_RETURN_IF_ERROR(server->start(abort));
  return server;
}

Status ParameterServerImpl::start(AbortSignal* abort) {
  CKPT_ASSIGN_OR_RETURN(
      job_, JobMembership::join(
                options_,
                [this](int from, std::uint64_t epoch, std::span<const std::byte> message) {
                  notes_.deliver(from, epoch, message);
                },
                abort));
  const int threads = options_.load_threads > 0
                          ? options_.load_threads
                          : std::max(1, available_processors() / job_->ranks_on_host());
  CKPT_ASSIGN_OR_RETURN(device_, open_device(options_.device, job_->local_rank(), threads));
  job_->start_transport(device_->uuid());
  CKPT_ASSIGN_OR_RETURN(memory_, memory_request(options_, device_->kind()));
  CKPT_ASSIGN_OR_RETURN(spread_, spread_choice(options_.collective, device_->kind()));
  memory_.sharing = spread_.sharing;
  if (options_.collective == "nccl") {
    CKPT_ASSIGN_OR_RETURN(auto nccl, nccl_for(device_->kind()));
    communicator_ =
        std::make_unique<KeptCommunicator>(std::move(nccl), options_.release_communicators);
  }
  if (options_.keep_buffers) kept_ = std::make_unique<KeptBuffers>(closing_);
  registry_ = std::make_unique<CheckpointRegistry>(*job_, *device_, threads,
                                                   options_.collective_timeout_seconds,
                                                   options_.reader_patience_seconds);
  if (const int removed = SharedMemory::remove_abandoned(kSharedMemoryPrefix); removed > 0) {
    log_info("removed ", removed, " objects from /dev/shm that a killed job had left");
  }
  return Status();
}

ParameterServerImpl::~ParameterServerImpl() {
  // A worker that has not heard yet that its update failed would wait for ever.
  const Status told =
      wait_for_closers(options_.job, Deadline::after_seconds(options_.collective_timeout_seconds));
  if (!told.is_ok()) log_warning(told.message());
}

Status ParameterServerImpl::register_checkpoint(const std::string& name, const Registration& part) {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  return registry_->add(name, part, call.signal());
}

Status ParameterServerImpl::unregister_checkpoint(const std::string& name, bool force) {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  if (name == name_in_update()) {
    return failed_precondition(
               concat("checkpoint ", quoted(name), " is being updated; commit or abort that first"))
        .on_rank(rank());
  }
  if (kept_) kept_->release_of(name);
  const Status status = registry_->remove(name, force);
  forget_stale_plan();
  return status;
}

Status ParameterServerImpl::gather_metas(const std::string& name) {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  const Status status = registry_->gather(name, call.signal());
  forget_stale_plan();
  return status;
}

Result<std::string> ParameterServerImpl::export_metas() const {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  return registry_->export_metas();
}

Status ParameterServerImpl::load_metas(const std::string& json) {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  const Status status = registry_->load_metas(json);
  forget_stale_plan();
  return status;
}

Status ParameterServerImpl::offer_loaded() {
  RunningCalls::Call call(running_);
  CKPT_RETURN_IF_ERROR(call.wait_for_turn());
  return registry_->offer_loaded(call.signal());
}

std::string ParameterServerImpl::checkpoint_name() const {
  const RunningCalls::Turn turn(running_);
  return registry_->catalog() ? registry_->catalog()->metas().checkpoint_name : std::string();
}

// A plan keeps its catalog, which may be large.
void ParameterServerImpl::forget_stale_plan() {
  if (cached_plan_ && cached_plan_->gathered != registry_->catalog()) cached_plan_.reset();
}

Status ParameterServerImpl::barrier(double timeout_seconds) {
  RunningCalls::Call call(running_);
  return job_->control().barrier("user", job_->all_ranks(),
                                 Deadline::after_seconds(timeout_seconds), call.signal());
}

Result<std::vector<std::string>> ParameterServerImpl::all_gather(const std::string& mine,
                                                                 double timeout_seconds) {
  RunningCalls::Call call(running_);
  CKPT_ASSIGN_OR_RETURN(
      const auto gathered,
      job_->control().all_gather("user", job_->all_ranks(), std::as_bytes(std::span(mine)),
                                 Deadline::after_seconds(timeout_seconds), call.signal()));
  std::vector<std::string> texts;
  for (const auto& bytes : gathered) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return texts;
}

}  // namespace ckpt
