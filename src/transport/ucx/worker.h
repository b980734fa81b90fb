// A UCX worker: the addresses, sockets and queues of some endpoints. Progress thread only, but for
// create().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "checkpoint_engine/status.h"
#include "transport/ucx/context.h"
#include "transport/ucx/message.h"

struct ucp_ep;
struct ucp_worker;

namespace ckpt::ucx {

class Worker;

/// Data that has arrived and not been received yet. Valid inside the handler only.
class Arrival {
 public:
  using Done = std::function<void(const Status&)>;

  Arrival(Worker& worker, const DataHeader& header, void* data, std::uint64_t bytes,
          bool rendezvous)
      : header_(header), worker_(worker), data_(data), bytes_(bytes), rendezvous_(rendezvous) {}

  const DataHeader& header() const { return header_; }
  std::uint64_t bytes() const { return bytes_; }
  /// The bytes, when they are here already; else receive() fetches them.
  bool is_here() const { return !rendezvous_; }
  std::span<const std::byte> here() const { return {static_cast<const std::byte*>(data_), bytes_}; }
  /// Lets UCX write to `destination`, which may lie on a GPU, until `done` is called, from inside
  /// UCX: it must only defer.
  void receive(void* destination, bool on_gpu, Done done);
  bool received() const { return received_; }

 private:
  const DataHeader header_;
  Worker& worker_;
  void* const data_;
  const std::uint64_t bytes_;
  const bool rendezvous_;
  bool received_ = false;
};

/// What a worker does with what arrives; called from inside UCX: messages must only be deferred.
struct WorkerHandlers {
  std::function<void(Message)> on_message;
  /// Whether to believe a greeting; one that is refused is answered and not handed on. Must not
  /// call UCX.
  std::function<Status(const Hello&)> check_hello;
  std::function<void(Arrival&)> on_data;
};

class Worker {
 public:
  /// `handlers` must outlive it.
  static Result<std::unique_ptr<Worker>> create(std::shared_ptr<Context> context,
                                                const WorkerHandlers& handlers);
  /// Ends whatever is left: afterwards no memory is written to, and receives have been told.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker* get() const { return worker_; }
  /// Readable when there is something to do, after arm() said true.
  int fd() const { return fd_; }
  /// True when something was done.
  bool progress();
  /// False when there is something to do already.
  bool arm();
  /// Where peers reach it.
  const std::vector<std::byte>& address() const { return address_; }

 private:
  friend class Arrival;
  struct Receive {
    Worker& worker;
    Arrival::Done done;
  };

  Worker(std::shared_ptr<Context> context, const WorkerHandlers& handlers)
      : context_(std::move(context)), handlers_(handlers) {}
  Status open();
  Status set_handlers();
  /// `way_back`: of UCX itself, to whoever sent the message; null where it did not ask for one.
  void on_message(std::span<const std::byte> bytes, ucp_ep* way_back);
  void receive(void* data, void* destination, std::uint64_t bytes, bool on_gpu, Arrival::Done done);

  const std::shared_ptr<Context> context_;
  const WorkerHandlers& handlers_;
  ucp_worker* worker_ = nullptr;
  int fd_ = -1;
  std::vector<std::byte> address_;
  std::set<Receive*> receives_;  // under way
};

}  // namespace ckpt::ucx
