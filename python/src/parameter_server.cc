#include "parameter_server.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint_engine/parameter_server.h"
#include "control/rendezvous.h"
#include "engine_call.h"
#include "errors.h"
#include "gil.h"
#include "interruptible.h"
#include "parameter_server/field_metas_json.h"
#include "parameter_server/metas_json.h"
#include "parameter_server/parameter_server_impl.h"
#include "report.h"
#include "transfer_engine.h"

namespace ckpt::python {
namespace {

using SharedServer = std::shared_ptr<ParameterServerImpl>;

/// Name, name of the dtype (torch's), shape, address, bytes.
using PythonTensor =
    std::tuple<std::string, std::string, std::vector<std::int64_t>, std::uintptr_t, std::uint64_t>;

Result<MemoryTensor> memory_tensor(const PythonTensor& tensor) {
  const auto& [name, dtype_text, shape, address, bytes] = tensor;
  const auto dtype = dtype_from_torch_name(dtype_text);
  if (!dtype) {
    return invalid_argument(concat("tensor ", quoted(name), " has dtype ", dtype_text,
                                   ", which no safetensors file can hold; convert it"));
  }
  CKPT_ASSIGN_OR_RETURN(TensorInfo info, make_tensor_info(name, *dtype, shape));
  if (info.bytes != bytes) {
    return invalid_argument(concat("tensor ", quoted(name), " has ", bytes,
                                   " bytes, its shape and dtype make ", info.bytes));
  }
  return MemoryTensor{std::move(info), reinterpret_cast<const std::byte*>(address)};
}

Result<Registration> registration(const std::vector<std::string>& files,
                                  const std::vector<PythonTensor>& tensors) {
  Registration part;
  CKPT_ASSIGN_OR_RETURN(const CheckpointFiles found, open_files(files));
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    part.files.push_back(
        {found.tensors[i], found.files[found.file_of[i]].path, found.offset_of[i]});
  }
  for (const PythonTensor& tensor : tensors) {
    CKPT_ASSIGN_OR_RETURN(part.tensors.emplace_back(), memory_tensor(tensor));
  }
  return part;
}

Status interrupted() { return aborted("interrupted by the user"); }

/// A prepared update and the server that must outlive it.
class Prepared {
 public:
  Prepared(SharedServer server, std::unique_ptr<PreparedUpdate> update)
      : server_(std::move(server)), update_(std::move(update)) {}
  /// Gives it up, unless it was committed or aborted.
  ~Prepared() {
    // The server too: of one that was closed meanwhile this may be the end, which waits for threads
    // that want the GIL.
    const nb::gil_scoped_release without_gil;
    update_.reset();
    server_.reset();
  }

  /// The update, once.
  std::unique_ptr<PreparedUpdate> take() {
    if (!update_) raise(failed_precondition("this update was committed or aborted already"));
    return std::move(update_);
  }

 private:
  SharedServer server_;
  std::unique_ptr<PreparedUpdate> update_;
};

/// A call of a server, which can be ended without ending those of other threads.
class Cancellable {
 public:
  explicit Cancellable(SharedServer server) : server_(std::move(server)) {}

  template <typename Work>
  auto run(const Work& work) const {
    const RunningCalls::EndedBy ended(signal_);
    return work(*server_);
  }
  void cancel() const { signal_->raise(interrupted().on_rank(server_->rank())); }

 private:
  const SharedServer server_;
  const std::shared_ptr<AbortSignal> signal_ = std::make_shared<AbortSignal>();
};

class Server {
 public:
  explicit Server(ParameterServerOptions options) {
    const auto abort = std::make_shared<AbortSignal>();
    server_ = interruptible<SharedServer>(
        [options = std::move(options), abort]() -> Result<SharedServer> {
          CKPT_ASSIGN_OR_RETURN(auto server, ParameterServerImpl::create(options, abort.get()));
          return SharedServer(std::move(server));
        },
        [abort] { abort->raise(interrupted()); });
  }

  ~Server() {
    const nb::gil_scoped_release without_gil;
    server_.reset();
  }

  /// Leaves the job; later calls are refused. Rank 0 waits for the others to leave.
  void close() {
    if (!server_) return;
    interruptible(
        [server = std::move(server_)]() mutable {
          server.reset();
          return Status::ok();
        },
        {});
  }

  int rank() const { return open()->rank(); }
  int world_size() const { return open()->world_size(); }
  int local_rank() const { return open()->local_rank(); }
  std::string checkpoint_name() const {
    return get<std::string>([](ckpt::ParameterServer& server) -> Result<std::string> {
      return server.checkpoint_name();
    });
  }

  void register_checkpoint(const std::string& name, const std::vector<std::string>& files,
                           const std::vector<PythonTensor>& tensors, bool use_shared_pool,
                           bool in_place, nb::object keep_alive) {
    run([=, keep_alive = shared_object(std::move(keep_alive))](ckpt::ParameterServer& server) {
      auto part = registration(files, tensors);
      if (!part) {
        return part.status()
            .with_context(concat("checkpoint ", quoted(name)))
            .on_rank(server.rank());
      }
      part->use_shared_pool = use_shared_pool;
      part->shared_memory_files =
          in_place ? ckpt::SharedMemoryFiles::kUseAndRemove : ckpt::SharedMemoryFiles::kRead;
      return server.register_checkpoint(name, *part);
    });
  }

  void unregister_checkpoint(const std::string& name, bool force) {
    run([=](ckpt::ParameterServer& server) { return server.unregister_checkpoint(name, force); });
  }
  void gather_metas(const std::string& name) {
    run([=](ckpt::ParameterServer& server) { return server.gather_metas(name); });
  }
  std::string export_metas() const {
    return get<std::string>([](ckpt::ParameterServer& server) { return server.export_metas(); });
  }
  void load_metas(const std::string& json) {
    run([=](ckpt::ParameterServer& server) { return server.load_metas(json); });
  }
  void offer_loaded() {
    run([](ckpt::ParameterServer& server) { return server.offer_loaded(); });
  }

  std::unique_ptr<Prepared> prepare(const std::string& name, const std::vector<int>& recipients,
                                    int instance_size, double timeout_seconds, bool verify,
                                    bool engine_answer_means_done) {
    UpdateOptions options;
    options.recipients = recipients;
    options.instance_size = instance_size;
    options.timeout_seconds = timeout_seconds;
    options.verify = verify;
    options.engine_answer_means_done = engine_answer_means_done;
    auto update = get<std::unique_ptr<PreparedUpdate>>(
        [=](ckpt::ParameterServer& server) { return server.prepare(name, options); });
    return std::make_unique<Prepared>(server_, std::move(update));
  }

  nb::dict commit(Prepared& prepared, nb::callable start_call) {
    open();
    // std::function copies what it holds.
    const auto update = std::make_shared<std::unique_ptr<PreparedUpdate>>(prepared.take());
    const UpdateReport report = get<UpdateReport>(
        [update, call = make_engine_call(std::move(start_call))](ckpt::ParameterServer& server) {
          return server.commit(std::move(*update), call);
        });
    return report_fields(report);
  }

  void abort(Prepared& prepared, const std::string& cause) {
    open();
    const auto update = std::make_shared<std::unique_ptr<PreparedUpdate>>(prepared.take());
    run([=](ckpt::ParameterServer& server) {
      server.abort(std::move(*update), aborted(cause));
      return Status::ok();
    });
  }

  void barrier(double timeout_seconds) {
    run([=](ckpt::ParameterServer& server) { return server.barrier(timeout_seconds); });
  }
  std::vector<nb::bytes> all_gather(nb::bytes mine, double timeout_seconds) {
    const std::string bytes(mine.c_str(), mine.size());
    std::vector<nb::bytes> gathered;
    for (const std::string& text :
         get<std::vector<std::string>>([=](ckpt::ParameterServer& server) {
           return server.all_gather(bytes, timeout_seconds);
         })) {
      gathered.emplace_back(text.data(), text.size());
    }
    return gathered;
  }

 private:
  const SharedServer& open() const {
    if (!server_) raise(failed_precondition("this parameter server is closed"));
    return server_;
  }

  void run(std::function<Status(ckpt::ParameterServer&)> work) const {
    Cancellable call(open());
    interruptible([call, work = std::move(work)] { return call.run(work); },
                  [call] { call.cancel(); });
  }

  template <typename T>
  T get(std::function<Result<T>(ckpt::ParameterServer&)> work) const {
    Cancellable call(open());
    return interruptible<T>([call, work = std::move(work)] { return call.run(work); },
                            [call] { call.cancel(); });
  }

  SharedServer server_;
};

void bind_options(nb::module_& module) {
  using Options = ParameterServerOptions;
  nb::class_<Options>(module, "ServerOptions", "See ParameterServerOptions of the C++ API.")
      .def(nb::init<>())
      .def_rw("rank", &Options::rank, nb::arg("value").none())
      .def_rw("world_size", &Options::world_size, nb::arg("value").none())
      .def_rw("local_rank", &Options::local_rank, nb::arg("value").none())
      .def_rw("rendezvous", &Options::rendezvous)
      .def_rw("external_hub", &Options::external_hub)
      .def_rw("job", &Options::job)
      .def_rw("secret", &Options::secret)
      .def_rw("host_id", &Options::host_id)
      .def_rw("join_timeout_seconds", &Options::join_timeout_seconds)
      .def_rw("heartbeat_timeout_seconds", &Options::heartbeat_timeout_seconds)
      .def_rw("hub_linger_seconds", &Options::hub_linger_seconds)
      .def_rw("collective_timeout_seconds", &Options::collective_timeout_seconds)
      .def_rw("device", &Options::device)
      .def_rw("collective", &Options::collective)
      .def_rw("keep_buffers", &Options::keep_buffers)
      .def_rw("ring_bytes", &Options::ring_bytes)
      .def_rw("bucket_bytes", &Options::bucket_bytes)
      .def_rw("chunk_bytes", &Options::chunk_bytes)
      .def_rw("memory_fraction", &Options::memory_fraction)
      .def_rw("load_threads", &Options::load_threads)
      .def_rw("advertise", &Options::advertise)
      .def(
          "use_transfer_engine",
          [](Options& options, nb::object engine) {
            options.transfer_engine = make_transfer_engine(std::move(engine));
          },
          nb::arg("engine"));
}

std::tuple<std::optional<int>, std::optional<int>> launched_rank_and_size() {
  const LaunchedRank said = value_or_raise(launched_rank(process_environment()));
  return {said.rank, said.world_size};
}

std::string field_metas(const std::string& json) {
  return metas_to_field_json(value_or_raise(metas_from_json(json)));
}

}  // namespace

void bind_parameter_server(nb::module_& module) {
  bind_options(module);
  module.def("field_metas", &field_metas, nb::arg("json"),
             "What export_metas gives, in the JSON of the Python package checkpoint-engine 0.4.");
  module.def("launched_rank", &launched_rank_and_size,
             "Rank and world size in the variables of torchrun, Open MPI or Slurm.");
  nb::class_<Prepared>(module, "PreparedUpdate",
                       "An update that has touched no engine yet. Dropping it gives it up.");
  nb::class_<Server>(module, "ParameterServer", "See ParameterServer of the C++ API.")
      .def(nb::init<ParameterServerOptions>(), nb::arg("options"))
      .def("close", &Server::close)
      .def_prop_ro("rank", &Server::rank)
      .def_prop_ro("world_size", &Server::world_size)
      .def_prop_ro("local_rank", &Server::local_rank)
      .def_prop_ro("checkpoint_name", &Server::checkpoint_name)
      .def("register_checkpoint", &Server::register_checkpoint, nb::arg("name"), nb::arg("files"),
           nb::arg("tensors"), nb::arg("use_shared_pool"), nb::arg("in_place"),
           nb::arg("keep_alive").none())
      .def("unregister_checkpoint", &Server::unregister_checkpoint, nb::arg("name"),
           nb::arg("force"))
      .def("gather_metas", &Server::gather_metas, nb::arg("name"))
      .def("export_metas", &Server::export_metas)
      .def("load_metas", &Server::load_metas, nb::arg("json"))
      .def("offer_loaded", &Server::offer_loaded)
      .def("prepare", &Server::prepare, nb::arg("name"), nb::arg("recipients"),
           nb::arg("instance_size"), nb::arg("timeout_seconds"), nb::arg("verify"),
           nb::arg("engine_answer_means_done"))
      .def("commit", &Server::commit, nb::arg("update"), nb::arg("start_call"))
      .def("abort", &Server::abort, nb::arg("update"), nb::arg("cause"))
      .def("barrier", &Server::barrier, nb::arg("timeout_seconds"))
      .def("all_gather", &Server::all_gather, nb::arg("mine"), nb::arg("timeout_seconds"));
}

}  // namespace ckpt::python
