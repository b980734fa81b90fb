#include "checkpoint_engine/status.h"

#include <cstring>

#include "base/strings.h"

namespace ckpt {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kAlreadyExists:
      return "already exists";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kPeerLost:
      return "peer lost";
    case StatusCode::kProtocol:
      return "protocol error";
    case StatusCode::kPeerError:
      return "peer error";
    case StatusCode::kAborted:
      return "aborted";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kIo:
      return "i/o error";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

Status::Status(StatusCode code, std::string message) {
  if (code != StatusCode::kOk) {
    state_ = std::make_shared<const State>(State{code, std::move(message), std::nullopt});
  }
}

const std::string& Status::message() const {
  static const std::string empty;
  return state_ ? state_->message : empty;
}

Status Status::on_rank(int rank) const {
  if (!state_ || state_->rank) return *this;
  Status copy;
  copy.state_ = std::make_shared<const State>(State{state_->code, state_->message, rank});
  return copy;
}

Status Status::with_context(std::string_view context) const {
  if (!state_) return *this;
  Status copy;
  copy.state_ = std::make_shared<const State>(
      State{state_->code, concat(context, ": ", state_->message), state_->rank});
  return copy;
}

std::string Status::to_string() const {
  if (!state_) return "ok";
  std::string text;
  if (state_->rank) text = concat("rank ", *state_->rank, ": ");
  return concat(text, status_code_name(state_->code), ": ", state_->message);
}

Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
Status already_exists(std::string m) { return {StatusCode::kAlreadyExists, std::move(m)}; }
Status failed_precondition(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
Status unsupported(std::string m) { return {StatusCode::kUnsupported, std::move(m)}; }
Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
Status peer_lost(std::string m) { return {StatusCode::kPeerLost, std::move(m)}; }
Status protocol_error(std::string m) { return {StatusCode::kProtocol, std::move(m)}; }
Status peer_error(std::string m) { return {StatusCode::kPeerError, std::move(m)}; }
Status aborted(std::string m) { return {StatusCode::kAborted, std::move(m)}; }
Status deadline_exceeded(std::string m) { return {StatusCode::kDeadlineExceeded, std::move(m)}; }
Status data_loss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
Status resource_exhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
Status io_error(std::string m) { return {StatusCode::kIo, std::move(m)}; }
Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

Status errno_error(std::string_view what, int error) {
  char buffer[128];
  // GNU strerror_r may return a static string instead of filling the buffer.
  return io_error(concat(what, ": ", ::strerror_r(error, buffer, sizeof(buffer))));
}

}  // namespace ckpt
