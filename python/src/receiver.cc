#include "receiver.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "checkpoint_engine/receiver.h"
#include "errors.h"
#include "worker/channel_address.h"

namespace ckpt::python {
namespace {

/// The bytes of one tensor in the ring. Whoever holds it keeps the ring mapped, but its content is
/// the tensor's only until load() returns.
struct RingBytes {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  bool on_device = false;
  std::shared_ptr<const void> ring;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto& bytes = *nb::inst_ptr<RingBytes>(nb::handle(self));
  // Writable only because torch warns of what is not.
  return PyBuffer_FillInfo(view, self, const_cast<std::byte*>(bytes.data),
                           static_cast<Py_ssize_t>(bytes.bytes), /*readonly=*/0, flags);
}

PyType_Slot ring_bytes_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, {}}};

/// (name, torch's name of the dtype, shape, RingBytes)
nb::tuple entry(const TensorInfo& info, RingBytes bytes) {
  std::vector<std::int64_t> shape = info.shape;
  // torch counts pairs of these, safetensors single ones.
  if (info.dtype == DType::kF4 && !shape.empty()) shape.back() /= 2;
  return nb::make_tuple(info.name, std::string(torch_dtype_name(info.dtype)),
                        nb::tuple(nb::cast(shape)), nb::cast(std::move(bytes)));
}

/// Gives buckets to Python's `load` and `finish`; keeps what they raise.
class PythonLoader : public Loader {
 public:
  PythonLoader(nb::callable load, nb::callable finish)
      : load_(std::move(load)), finish_(std::move(finish)) {}

  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override {
    if (tensor.bytes == 0) empty_.push_back(tensor);
    return std::span<std::byte>();
  }

  Status load(std::span<const TensorView> tensors) override {
    return call_python([&] {
      nb::list entries = take_empty();
      for (const TensorView& tensor : tensors) {
        entries.append(
            entry(*tensor.info, {tensor.data, tensor.info->bytes, tensor.on_device, tensor.ring}));
      }
      load_(std::move(entries));
    });
  }

  Status finish() override {
    return call_python([&] {
      if (!empty_.empty()) load_(take_empty());
      finish_();
    });
  }

  /// While the receiver waits: a signal whose handler raises ends the update.
  Status check_signals() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return Status::ok();
    raised_.emplace();
    return aborted("the worker was interrupted by the user");
  }

  /// Raises what Python code has raised, if it has.
  void raise_again() {
    if (raised_) throw *raised_;
  }

 private:
  nb::list take_empty() {
    nb::list entries;
    for (const TensorInfo& info : std::exchange(empty_, {})) entries.append(entry(info, {}));
    return entries;
  }

  template <typename Body>
  Status call_python(Body body) {
    const nb::gil_scoped_acquire gil;
    try {
      body();
      return Status::ok();
    } catch (const nb::python_error& error) {
      raised_.emplace(error);
      return raised_by("loading", error);
    }
  }

  nb::callable load_, finish_;
  std::vector<TensorInfo> empty_;  // seen, but not handed over yet
  std::optional<nb::python_error> raised_;
};

nb::dict receive(const std::string& address, nb::callable load, nb::callable finish,
                 double timeout_seconds, bool verify, const std::string& secret) {
  PythonLoader loader(std::move(load), std::move(finish));
  ReceiverOptions options;
  options.timeout_seconds = timeout_seconds;
  options.verify = verify;
  options.secret = secret;
  options.while_waiting = [&loader] { return loader.check_signals(); };
  Result<ReceiveReport> report = ReceiveReport();
  {
    const nb::gil_scoped_release without_gil;
    report = update_weights(address, loader, options);
  }
  loader.raise_again();
  raise_if_error(report.status());
  nb::dict fields;
  fields["tensors"] = report->tensors;
  fields["bytes"] = report->bytes;
  fields["verified_tensors"] = report->verified_tensors;
  fields["buckets"] = report->buckets;
  fields["load_seconds"] = report->load_seconds;
  return fields;
}

}  // namespace

void bind_receiver(nb::module_& module) {
  nb::class_<RingBytes>(
      module, "RingBytes", nb::type_slots(ring_bytes_slots), nb::is_weak_referenceable(),
      "The bytes of a tensor in the ring; has the buffer protocol for host rings.")
      .def_prop_ro("address",
                   [](const RingBytes& b) { return reinterpret_cast<std::uintptr_t>(b.data); })
      .def_ro("on_device", &RingBytes::on_device)
      .def("__len__", [](const RingBytes& b) { return b.bytes; });
  module.def(
      "is_native_address",
      [](const std::string& address) { return native_address(address).is_ok(); },
      nb::arg("address"), "Whether the rank at `address` is one of ours.");
  module.def(
      "receive", &receive, nb::arg("address"), nb::arg("load"), nb::arg("finish"),
      nb::arg("timeout_seconds"), nb::arg("verify"), nb::arg("secret"),
      "Receives one update. load([(name, dtype, shape, RingBytes)]) and finish() run on this "
      "thread; what they raise ends the update on every rank, and is raised here.");
}

}  // namespace ckpt::python
