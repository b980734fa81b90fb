// Status and Result: how every call of the engine reports failure. No exception leaves the C++ API.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace [[gnu::visibility("default")]] ckpt {

/// What failed, grouped by what it breaks. Values travel on the wire: never renumber.
enum class StatusCode : int {
  kOk = 0,
  // This call: nothing was changed; correct the argument or the order of calls.
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kFailedPrecondition = 4,
  kUnsupported = 5,
  // This peer: a rank, worker, engine or owner does not answer as it should.
  kUnavailable = 20,
  kPeerLost = 21,
  kProtocol = 22,
  kPeerError = 23,
  // This update: it is over on every rank; the next one may work.
  kAborted = 40,
  kDeadlineExceeded = 41,
  kDataLoss = 42,
  // This process: memory, files or an error of our own.
  kResourceExhausted = 60,
  kIo = 61,
  kInternal = 62,
};

/// Lower-case name of `code`, e.g. "deadline exceeded".
std::string_view status_code_name(StatusCode code);

/// The outcome of a call: ok, or a code and one line that says what failed and what to do.
/// Copies are cheap and share their text. Thread-compatible, like a string.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message);

  static Status ok() { return Status(); }

  bool is_ok() const { return state_ == nullptr; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return state_ ? state_->code : StatusCode::kOk; }
  const std::string& message() const;
  /// Rank on which the cause was found, where it is known.
  std::optional<int> rank() const { return state_ ? state_->rank : std::nullopt; }

  /// The same error found on `rank`; a rank that is already set stays (the first cause wins).
  Status on_rank(int rank) const;
  /// The same error with `context` and ": " before its text.
  Status with_context(std::string_view context) const;
  /// "rank 3: data loss: tensor ..." or "ok".
  std::string to_string() const;

 private:
  struct State {
    StatusCode code;
    std::string message;
    std::optional<int> rank;
  };
  std::shared_ptr<const State> state_;
};

Status invalid_argument(std::string message);
Status not_found(std::string message);
Status already_exists(std::string message);
Status failed_precondition(std::string message);
Status unsupported(std::string message);
Status unavailable(std::string message);
Status peer_lost(std::string message);
Status protocol_error(std::string message);
Status peer_error(std::string message);
Status aborted(std::string message);
Status deadline_exceeded(std::string message);
Status data_loss(std::string message);
Status resource_exhausted(std::string message);
Status io_error(std::string message);
Status internal_error(std::string message);
/// io_error with the text of errno `error` behind `what`.
Status errno_error(std::string_view what, int error);

/// A value or the Status that explains its absence.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T content) : content_(std::move(content)) {}     // NOLINT: implicit by design
  Result(Status status) : content_(std::move(status)) {}  // NOLINT: implicit by design

  bool is_ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return is_ok(); }
  Status status() const { return is_ok() ? Status() : std::get<Status>(content_); }

  /// Only when is_ok().
  T& value() & { return std::get<T>(content_); }
  const T& value() const& { return std::get<T>(content_); }
  T&& value() && { return std::get<T>(std::move(content_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace ckpt

#define CKPT_CONCAT_INNER(a, b) a##b
#define CKPT_CONCAT(a, b) CKPT_CONCAT_INNER(a, b)
/// Returns from the enclosing function when `expr` is an error.
#define CKPT_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                    \
    if (::ckpt::Status ckpt_status_ = (expr); !ckpt_status_.is_ok()) return ckpt_status_; \
  } while (false)
#define CKPT_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.is_ok()) return result.status();         \
  lhs = std::move(result).value()
/// `CKPT_ASSIGN_OR_RETURN(auto file, open(path));`
#define CKPT_ASSIGN_OR_RETURN(lhs, expr) \
  CKPT_ASSIGN_OR_RETURN_INNER(CKPT_CONCAT(ckpt_result_, __LINE__), lhs, expr)
