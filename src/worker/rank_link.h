// The worker's connection to its rank on the native wire.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/fd.h"
#include "checkpoint_engine/receiver.h"
#include "checkpoint_engine/status.h"
#include "worker/native_messages.h"
#include "worker/zmq_socket.h"

namespace ckpt {

/// One thread uses it. After an error only fail() and the destructor are left.
class RankLink {
 public:
  /// Connects to native_address(address) and shakes hands. kUnavailable when nobody listens there.
  static Result<std::unique_ptr<RankLink>> connect(const std::string& address,
                                                   const ReceiverOptions& options);
  ~RankLink();

  const native::Welcome& welcome() const { return welcome_; }

  /// The rank's next message: its cause when it gives up (code, rank and text as it said them),
  /// kPeerLost when it has gone, kDeadlineExceeded after `options.timeout_seconds` without one.
  Result<native::Body> receive();
  Status send(const native::Body& body);
  /// Tells the rank why this worker gives up, if it is still there; gives `cause` back.
  Status fail(Status cause);

 private:
  RankLink(std::string address, ReceiverOptions options, std::unique_ptr<ZmqSocket> socket);

  Status shake_hands();
  Status check_challenge(const native::Challenge& challenge, const native::Bytes& nonce) const;
  template <typename T>
  Result<T> expect();
  Result<std::optional<native::Body>> next();
  Status note_sender(const ZmqMessage& message);
  Status lost(std::string_view how);

  const std::string address_;
  const ReceiverOptions options_;
  std::unique_ptr<ZmqSocket> socket_;
  UniqueFd rank_watch_;
  std::int64_t rank_pid_ = 0;
  bool sender_known_ = false;
  bool failed_by_rank_ = false;
  bool rank_gone_ = false;
  std::uint64_t epoch_ = 0;  ///< 0 until the rank has told it
  native::Welcome welcome_;
};

}  // namespace ckpt
