// One connection to another worker. All methods on the progress thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint_engine/status.h"
#include "transport/ucx/message.h"
#include "transport/ucx/progress.h"
#include "transport/ucx/worker.h"

struct ucp_ep;

namespace ckpt::ucx {

class Endpoint {
 public:
  using Done = std::function<void(bool sent)>;
  using Failed = std::function<void(const std::string& why)>;

  /// `address` must be one that UCX made: it is checked for what UCX itself trusts without a look,
  /// not for more. kProtocol where that is wrong; kUnavailable where there is no way to it.
  /// `failed` is called once, at the end of a progress call, when UCX finds the connection broken;
  /// not after close().
  static Result<std::unique_ptr<Endpoint>> connect(Progress& progress,
                                                   std::shared_ptr<Worker> worker,
                                                   std::span<const std::byte> address,
                                                   Failed failed);
  /// As close().
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Both call `done` later, when UCX does not need the bytes any more.
  void send(const Message& message, Done done = {});
  /// `data` stays the caller's and must live until `done`.
  void send_data(const DataHeader& header, const void* data, std::uint64_t bytes, Done done);
  /// Sends `data`, which it owns.
  void send_copy(const DataHeader& header, std::vector<std::byte> data);
  /// Cuts the connection: all that is under way ends soon, with an error. Idempotent.
  void close();

 private:
  struct State;
  struct Outgoing;
  explicit Endpoint(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void closed(const std::shared_ptr<State>& state);
  void submit(unsigned id, std::unique_ptr<Outgoing> outgoing, const void* data,
              std::uint64_t bytes, unsigned flags);

  std::shared_ptr<State> state_;
};

}  // namespace ckpt::ucx
