#include "transport/callback/callback_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/host.h"
#include "base/strings.h"
#include "transport/callback/callback_peer.h"
#include "transport/descriptor.h"
#include "transport/read_plan.h"

namespace ckpt {
namespace {

using callback::Engine;
using callback::Job;
using callback::PeerQueue;

constexpr std::chrono::seconds kRegionPatience{5};

Status closed_error() { return failed_precondition("this transport is closed"); }

class Region final : public MemoryRegion {
 public:
  Region(std::shared_ptr<Engine> engine, std::uint64_t id, void* data, std::uint64_t bytes)
      : engine_(std::move(engine)), id_(id), data_(data), bytes_(bytes) {}
  ~Region() override { Region::close(Deadline::after(kRegionPatience)); }

  std::uint64_t id() const override { return id_; }
  std::uint64_t bytes() const override { return bytes_; }
  void close(Deadline deadline) override {
    const std::lock_guard lock(closing_);  // a second call waits for the first
    if (std::exchange(closed_, true)) return;
    engine_->remove_region(id_);
    engine_->callbacks.deregister_memory(id_, data_, deadline);
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::uint64_t id_;
  void* const data_;
  const std::uint64_t bytes_;
  std::mutex closing_;
  bool closed_ = false;  // guarded by closing_
};

class CallbackDestination final : public Destination {
 public:
  CallbackDestination(std::shared_ptr<Engine> engine, void* data)
      : engine_(std::move(engine)), data_(data) {}
  ~CallbackDestination() override { engine_->callbacks.deregister_destination(data_); }

 private:
  const std::shared_ptr<Engine> engine_;
  void* const data_;
};

class CallbackPeer final : public Peer {
 public:
  explicit CallbackPeer(std::shared_ptr<PeerQueue> queue) : queue_(std::move(queue)) {}
  ~CallbackPeer() override {
    CallbackPeer::close();
    queue_->join();
  }
  const std::string& label() const override { return queue_->remote().label; }
  const std::string& instance() const override { return queue_->remote().instance; }
  std::span<const RemoteRegion> regions() const override { return queue_->regions(); }
  Status status() const override { return queue_->status(); }
  void close() override { queue_->close(); }
  const std::shared_ptr<PeerQueue>& queue() const { return queue_; }

 private:
  const std::shared_ptr<PeerQueue> queue_;
};

class CallbackRead final : public Read {
 public:
  explicit CallbackRead(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~CallbackRead() override {
    CallbackRead::cancel(aborted("the read was given up"));
    // Its function promises to return soon after the abort; the memory is its own until then.
    while (!job_->outcome.wait_released(Deadline::after_seconds(1))) {
    }
  }
  bool done() const override { return job_->outcome.done(); }
  bool destination_released() const override { return job_->outcome.released(); }
  std::uint64_t bytes() const override { return job_->bytes; }
  std::uint64_t bytes_done() const override { return job_->outcome.bytes_done(); }
  void cancel(Status cause) override {
    if (job_->outcome.finish(cause)) job_->abort.raise(std::move(cause));
  }
  Status wait(Deadline deadline, AbortSignal* abort) override {
    const int key = abort ? abort->subscribe([this](const Status& cause) { cancel(cause); }) : 0;
    const auto outcome = job_->outcome.wait_done(deadline.earlier(job_->deadline));
    if (abort) abort->unsubscribe(key);
    if (!outcome) cancel(job_->too_late());
    return job_->outcome.outcome();
  }

 private:
  const std::shared_ptr<Job> job_;
};

class CallbackTransportImpl final : public CallbackTransport {
 public:
  explicit CallbackTransportImpl(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~CallbackTransportImpl() override { CallbackTransportImpl::close(); }

  std::string_view name() const override { return "callback"; }
  const std::string& instance() const override { return engine_->instance; }

  Result<std::unique_ptr<MemoryRegion>> register_memory(void* data, std::uint64_t bytes) override {
    if (engine_->closed.load()) return closed_error();
    const std::uint64_t id = engine_->next_region.fetch_add(1);
    CKPT_RETURN_IF_ERROR(engine_->callbacks.register_memory(id, data, bytes));
    engine_->add_region({id, bytes, reinterpret_cast<std::uintptr_t>(data)});
    return std::unique_ptr<MemoryRegion>(std::make_unique<Region>(engine_, id, data, bytes));
  }

  Status can_read_into(DeviceKind kind) const override {
    return engine_->callbacks.register_destination ? Status::ok() : Transport::can_read_into(kind);
  }

  Result<std::unique_ptr<Destination>> register_destination(Device& device, std::byte* data,
                                                            std::uint64_t bytes) override {
    CKPT_RETURN_IF_ERROR(can_read_into(device.kind()));
    CKPT_RETURN_IF_ERROR(engine_->callbacks.register_destination(data, bytes));
    return std::unique_ptr<Destination>(std::make_unique<CallbackDestination>(engine_, data));
  }

  Result<std::vector<std::byte>> descriptor() override {
    if (engine_->closed.load()) return closed_error();
    const std::string& address = engine_->callbacks.address;
    const auto* bytes = reinterpret_cast<const std::byte*>(address.data());
    return encode_descriptor({std::string(name()), engine_->instance, engine_->label,
                              std::vector<std::byte>(bytes, bytes + address.size()),
                              engine_->regions()});
  }

  Result<std::unique_ptr<Peer>> connect(std::span<const std::byte> bytes, ConnectOptions options,
                                        Deadline /*deadline*/) override {
    if (engine_->closed.load()) return closed_error();
    CKPT_ASSIGN_OR_RETURN(Descriptor descriptor, decode_descriptor(bytes, name()));
    if (!options.label.empty()) descriptor.label = options.label;
    auto queue = PeerQueue::start(engine_, std::move(descriptor), std::move(options.on_lost));
    engine_->add_peer(queue);
    return std::unique_ptr<Peer>(std::make_unique<CallbackPeer>(std::move(queue)));
  }

  std::unique_ptr<Read> read(Peer& peer, std::span<const ReadRange> ranges, Deadline deadline,
                             ReadCallback callback) override {
    auto job = std::make_shared<Job>();
    job->deadline = deadline;
    job->callback = std::move(callback);
    auto handle = std::make_unique<CallbackRead>(job);
    const auto* ours = dynamic_cast<const CallbackPeer*>(&peer);
    if (ours == nullptr) {
      job->outcome.finish(invalid_argument("read from a peer of another transport"));
      return handle;
    }
    job->label = peer.label();
    if (Status status = check_ranges(ranges, peer.regions(), peer.label()); !status.is_ok()) {
      job->outcome.finish(std::move(status));
    } else {
      job->pieces = ours->queue()->pieces(ranges);
      for (const auto& piece : job->pieces) job->bytes += piece.bytes;
      if (job->bytes == 0) job->outcome.finish(Status::ok());
    }
    ours->queue()->push(std::move(job));
    return handle;
  }

  Status signal(Peer& peer, std::span<const std::byte> message) override {
    const auto* ours = dynamic_cast<const CallbackPeer*>(&peer);
    if (ours == nullptr) return invalid_argument("signal to a peer of another transport");
    if (!engine_->callbacks.signal) {
      return unsupported("this transport engine carries no signals");
    }
    if (message.size() > kMaxSignalBytes) {
      return invalid_argument(concat("a signal of ", message.size(), " bytes to ", peer.label(),
                                     ", at most ", kMaxSignalBytes, " are allowed"));
    }
    return ours->queue()->push_signal({message.begin(), message.end()});
  }

  void set_signal_handler(SignalHandler handler) override {
    engine_->inbox.set_handler(std::move(handler));
  }
  void deliver_signal(std::string_view label, std::string_view instance,
                      std::span<const std::byte> message) override {
    engine_->counters.signals_received.fetch_add(1);
    engine_->inbox.deliver(label, instance, message);
  }

  TransportStatistics statistics() const override { return engine_->counters.read(); }

  void close() override { engine_->close(); }

 private:
  const std::shared_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<CallbackTransport> make_callback_transport(std::string label,
                                                           TransportCallbacks callbacks) {
  auto engine = std::make_shared<Engine>();
  engine->callbacks = std::move(callbacks);
  engine->instance = random_id();
  engine->label = std::move(label);
  return std::make_unique<CallbackTransportImpl>(std::move(engine));
}

}  // namespace ckpt
