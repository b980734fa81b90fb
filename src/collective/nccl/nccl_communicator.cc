#include "collective/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/strings.h"

namespace ckpt {
namespace {

// A group call is queued after about 50 microseconds, a communicator made after half a second.
constexpr std::chrono::microseconds kPollInterval{10};

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::create(
    std::shared_ptr<const NcclApi> api, const NcclUniqueId& id, std::vector<int> members, int rank,
    Device& device, Deadline deadline, AbortSignal& abort) {
  std::unique_ptr<NcclCommunicator> made(
      new NcclCommunicator(std::move(api), std::move(members), device));
  const auto current = device.make_current();
  NcclConfig config;
  const int result = made->api_->comm_init_rank_config(
      &made->handle_, static_cast<int>(made->members_.size()), id, made->member(rank), &config);
  made->usable_ = made->handle_ != nullptr;
  CKPT_RETURN_IF_ERROR(made->settle(result, "making a communicator", deadline, abort));
  return made;
}

NcclCommunicator::~NcclCommunicator() { abort(); }

int NcclCommunicator::member(int rank) const {
  return static_cast<int>(std::lower_bound(members_.begin(), members_.end(), rank) -
                          members_.begin());
}

Status NcclCommunicator::failure(int result, const char* what) const {
  const char* detail = handle_ == nullptr ? nullptr : api_->get_last_error(handle_);
  const std::string text =
      concat("NCCL, ", what, " among ", members_.size(), " ranks: ", api_->get_error_string(result),
             detail == nullptr || *detail == '\0' ? "" : ": ", detail == nullptr ? "" : detail);
  return result == kNcclRemoteError ? peer_error(text) : internal_error(text);
}

Status NcclCommunicator::settle(int result, const char* what, Deadline deadline,
                                AbortSignal& abort) {
  while (result == kNcclInProgress) {
    if (abort.raised()) return abort.cause();
    if (deadline.expired()) {
      std::vector<std::string> ranks;
      for (const int member : members_) ranks.push_back(concat(member));
      return deadline_exceeded(
          concat("NCCL, ", what, ": not every rank of ", join(ranks, ", "), " came in time"));
    }
    std::this_thread::sleep_for(kPollInterval);
    if (const int asked = api_->comm_get_async_error(handle_, &result); asked != kNcclSuccess) {
      return failure(asked, what);
    }
  }
  return result == kNcclSuccess ? Status() : failure(result, what);
}

Status NcclCommunicator::broadcast(std::span<const NcclBroadcast> group, void* stream,
                                   Deadline deadline, AbortSignal& abort) {
  if (!usable_) return failed_precondition("this communicator was aborted");
  const auto current = device_.make_current();
  if (const int result = api_->group_start(); result != kNcclSuccess) {
    return failure(result, "a group call");
  }
  int first = kNcclSuccess;
  for (const NcclBroadcast& one : group) {
    const int result =
        api_->broadcast(one.from, one.to, one.bytes, kNcclInt8, one.root, handle_, stream);
    if (result != kNcclSuccess && result != kNcclInProgress && first == kNcclSuccess)
      first = result;
  }
  const int end = api_->group_end();
  if (first != kNcclSuccess) return failure(first, "a broadcast");
  return settle(end, "a group call", deadline, abort);
}

Status NcclCommunicator::check() {
  const auto current = device_.make_current();
  int result = kNcclSuccess;
  const int asked = api_->comm_get_async_error(handle_, &result);
  if (asked != kNcclSuccess) return failure(asked, "a group call");
  if (result == kNcclSuccess || result == kNcclInProgress) return Status();
  return failure(result, "a group call");
}

void NcclCommunicator::abort() {
  const auto current = device_.make_current();
  if (usable_.exchange(false)) api_->comm_abort(handle_);
}

void NcclCommunicator::release(Deadline deadline, AbortSignal& abort_signal) {
  if (!usable_) return;
  const auto current = device_.make_current();
  if (!settle(api_->comm_finalize(handle_), "ending a communicator", deadline, abort_signal)
           .is_ok()) {
    abort();
    return;
  }
  usable_ = false;
  api_->comm_destroy(handle_);
}

}  // namespace ckpt
