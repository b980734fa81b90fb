#include "transfer_engine.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "errors.h"
#include "gil.h"
#include "text.h"
#include "transport/network/network_choice.h"

namespace ckpt::python {
namespace {

/// Whether a read is cancelled, as a function that the engine may keep: "yes" from the read's end
/// on. The GIL guards what it asks.
class WhileReading {
 public:
  explicit WhileReading(const std::function<bool()>& cancelled)
      : asked_(std::make_shared<const std::function<bool()>*>(&cancelled)) {}
  ~WhileReading() { *asked_ = nullptr; }
  WhileReading(const WhileReading&) = delete;
  WhileReading& operator=(const WhileReading&) = delete;

  nb::object function() const {
    return nb::cpp_function([asked = asked_] { return *asked == nullptr || (**asked)(); });
  }

 private:
  const std::shared_ptr<const std::function<bool()>*> asked_;
};

std::string address_of(const nb::object& engine) {
  std::string address;
  if (!nb::try_cast(engine.attr("address"), address)) {
    raise(invalid_argument("the address of the transfer engine is no str of UTF-8"));
  }
  return address;
}

class PythonTransferEngine final : public TransferEngine {
 public:
  explicit PythonTransferEngine(nb::object engine)
      : address_(address_of(engine)),
        takes_destinations_(nb::hasattr(engine, "register_destination")),
        engine_(shared_object(std::move(engine))) {}

  std::string address() const override { return address_; }
  Status register_memory(void* data, std::uint64_t bytes) override {
    return call("register_memory", [&](const nb::object& engine) {
      engine.attr("register_memory")(number(data), bytes);
    });
  }
  void deregister_memory(void* data) override {
    // Nobody is left to be told; the engine logs it.
    static_cast<void>(call("deregister_memory", [&](const nb::object& engine) {
      engine.attr("deregister_memory")(number(data));
    }));
  }
  Status read(const std::string& address, std::span<const Piece> pieces, double seconds,
              const std::function<bool()>& cancelled) override {
    std::vector<std::tuple<std::uint64_t, std::uintptr_t, std::uint64_t>> list;
    for (const Piece& piece : pieces) {
      list.emplace_back(piece.remote_address, number(piece.destination), piece.bytes);
    }
    return call("read", [&](const nb::object& engine) {
      const WhileReading asked(cancelled);
      engine.attr("read")(address, list, seconds, asked.function());
    });
  }
  bool has_abandoned_reads(const std::string& address) const override {
    bool has = false;
    const Status answered = call("has_abandoned_reads", [&](const nb::object& engine) {
      if (!nb::hasattr(engine, "has_abandoned_reads")) return;
      const nb::object answer = engine.attr("has_abandoned_reads")(address);
      if (!nb::try_cast(answer, has)) throw std::invalid_argument("it is no bool");
    });
    if (answered.is_ok()) return has;
    // Unknown: its owner then gets that memory back too late, rather than too early.
    if (!complained_.test_and_set()) log_warning(answered.message());
    return true;
  }
  bool takes_destinations() const override { return takes_destinations_; }
  Status register_destination(void* data, std::uint64_t bytes) override {
    return call("register_destination", [&](const nb::object& engine) {
      engine.attr("register_destination")(number(data), bytes);
    });
  }
  void deregister_destination(void* data) override {
    static_cast<void>(call("deregister_destination", [&](const nb::object& engine) {
      engine.attr("deregister_destination")(number(data));
    }));
  }
  Status send(const std::string& address, std::span<const std::byte> message) override {
    return call("send", [&](const nb::object& engine) {
      engine.attr("send")(address, nb::bytes(message.data(), message.size()));
    });
  }
  void set_message_handler(MessageHandler handler) override {
    const bool receives = handler != nullptr;
    {
      const std::lock_guard lock(inbox_->mutex);
      inbox_->handler = std::move(handler);
    }
    static_cast<void>(call("set_receiver", [&](const nb::object& engine) {
      if (!receives) {
        engine.attr("set_receiver")(nb::none());
        return;
      }
      engine.attr("set_receiver")(nb::cpp_function([inbox = inbox_](nb::bytes message) {
        const std::string copy(message.c_str(), message.size());
        const nb::gil_scoped_release without_gil;
        const std::lock_guard lock(inbox->mutex);
        if (inbox->handler) inbox->handler(std::as_bytes(std::span(copy)));
      }));
    }));
  }

 private:
  /// Outlives what handles its messages: the engine may keep its receiver, and be in it.
  struct Inbox {
    std::mutex mutex;  // held while `handler` runs
    MessageHandler handler;
  };

  static std::uintptr_t number(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

  /// ConnectionError is a lost peer, LookupError memory that is not there. Most calls come from
  /// threads on which nobody catches what an engine of the application's does wrong.
  template <typename Body>
  Status call(const char* what, Body body) const {
    const nb::gil_scoped_acquire gil;
    try {
      body(*engine_);
      return Status::ok();
    } catch (const nb::python_error& error) {
      const std::string text = text_of(error.value());
      if (error.matches(PyExc_ConnectionError)) return peer_lost(text);
      if (error.matches(PyExc_LookupError)) return not_found(text);
      if (error.matches(PyExc_TimeoutError)) return deadline_exceeded(text);
      return raised_by(concat(what, "() of the transfer engine"), error);
    } catch (const std::exception& error) {
      return peer_error(concat(
          "what ", what, "() of the transfer engine returned cannot be used: ", error.what()));
    }
  }

  const std::string address_;
  const bool takes_destinations_;
  const std::shared_ptr<nb::object> engine_;
  mutable std::atomic_flag complained_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
};

// As for a job of one host: what leads outward.
constexpr const char* kThisHost = "127.0.0.1";

std::vector<std::string> rdma_devices_of(int local_rank, int local_ranks,
                                         const std::string& device_uuid) {
  NetworkRequest request;
  request.master_host = kThisHost;
  request.device_uuid = device_uuid;
  request.local_rank = local_rank;
  request.local_ranks = local_ranks;
  const NetworkChoice choice = value_or_raise([&] {
    const nb::gil_scoped_release without_gil;
    return choose_network(request);
  }());
  raise_if_error(choice.rdma_filter);
  return choice.rdma ? choice.devices : std::vector<std::string>();
}

std::string address_of_this_host(const std::string& advertise) {
  return value_or_raise([&] {
           const nb::gil_scoped_release without_gil;
           return own_address(advertise, kThisHost);
         }())
      .address;
}

}  // namespace

std::shared_ptr<TransferEngine> make_transfer_engine(nb::object engine) {
  return std::make_shared<PythonTransferEngine>(std::move(engine));
}

void bind_transfer_engine(nb::module_& module) {
  module.def("rdma_devices", &rdma_devices_of, nb::arg("local_rank"), nb::arg("local_ranks"),
             nb::arg("device_uuid") = "",
             "The RDMA devices of a rank as \"NAME:PORT\", by the rules of docs/p2p.md; none where "
             "there is no RDMA.");
  module.def("own_address", &address_of_this_host, nb::arg("advertise") = "",
             "Under which others reach this host, by the rules of docs/p2p.md; `advertise` is an "
             "address or an interface.");
}

}  // namespace ckpt::python
