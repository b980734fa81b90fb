#include "process_group.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "collective/group/process_group.h"
#include "control/hub.h"
#include "errors.h"
#include "gil.h"
#include "interruptible.h"

namespace ckpt::python {
namespace {

/// Where ranks of a group meet.
class Meeting {
 public:
  Meeting(const std::string& bind_host, int world_size, const std::string& secret) {
    HubOptions options;
    options.bind_host = bind_host;
    options.world_size = world_size;
    options.secret = secret;
    hub_ = value_or_raise(Hub::start(options));
  }
  ~Meeting() {
    const nb::gil_scoped_release without_gil;
    hub_.reset();
  }

  int port() const { return hub_->address().port; }

  void close(double timeout_seconds) {
    const auto hub = hub_;
    interruptible([=] { return hub->wait_until_empty(Deadline::after_seconds(timeout_seconds)); },
                  {});
  }

 private:
  std::shared_ptr<Hub> hub_;
};

class Group {
 public:
  Group(int rank, int world_size, const std::string& hub, const std::string& job,
        const std::string& secret, double timeout_seconds) {
    JoinOptions options;
    options.hub = value_or_raise(parse_host_port(hub));
    options.rank = rank;
    options.world_size = world_size;
    options.job = job;
    options.secret = secret;
    options.hub_is_rank_0 = true;
    const auto abort = std::make_shared<AbortSignal>();
    options.abort = abort.get();
    group_ = interruptible<std::shared_ptr<ProcessGroup>>(
        [=, abort_lives = abort]() -> Result<std::shared_ptr<ProcessGroup>> {
          CKPT_ASSIGN_OR_RETURN(
              auto joined, ProcessGroup::join(options, Deadline::after_seconds(timeout_seconds)));
          return std::shared_ptr<ProcessGroup>(std::move(joined));
        },
        interrupt(abort));
  }
  ~Group() {
    const nb::gil_scoped_release without_gil;
    group_.reset();
  }

  void leave() {
    const nb::gil_scoped_release without_gil;
    group_.reset();
  }

  void barrier(const std::string& tag, const std::vector<int>& ranks, double timeout_seconds) {
    const auto abort = std::make_shared<AbortSignal>();
    interruptible(
        [=, group = open()] {
          return group->barrier(tag, ranks, Deadline::after_seconds(timeout_seconds), *abort);
        },
        interrupt(abort));
  }

  std::vector<nb::bytes> all_gather(const std::string& tag, const std::vector<int>& ranks,
                                    nb::bytes mine, double timeout_seconds) {
    const auto abort = std::make_shared<AbortSignal>();
    const std::string content(mine.c_str(), mine.size());
    const auto gathered = interruptible<std::vector<ControlClient::Bytes>>(
        [=, group = open()] {
          return group->all_gather(tag, ranks, std::as_bytes(std::span(content)),
                                   Deadline::after_seconds(timeout_seconds), *abort);
        },
        interrupt(abort));
    std::vector<nb::bytes> out;
    for (const ControlClient::Bytes& bytes : gathered) out.emplace_back(bytes.data(), bytes.size());
    return out;
  }

  void broadcast(const std::string& tag, const std::vector<int>& ranks, int source,
                 std::uintptr_t address, std::uint64_t bytes, nb::object keep_alive,
                 double timeout_seconds) {
    const auto abort = std::make_shared<AbortSignal>();
    const std::span memory(reinterpret_cast<std::byte*>(address), bytes);
    interruptible(
        [=, group = open(), keep_alive = shared_object(std::move(keep_alive))] {
          return group->broadcast(tag, ranks, source, memory,
                                  Deadline::after_seconds(timeout_seconds), *abort);
        },
        interrupt(abort));
  }

 private:
  std::shared_ptr<ProcessGroup> open() const {
    if (!group_) raise(failed_precondition("this process group was destroyed"));
    return group_;
  }
  static std::function<void()> interrupt(std::shared_ptr<AbortSignal> abort) {
    return [abort = std::move(abort)] { abort->raise(aborted("interrupted by the user")); };
  }

  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

void bind_process_group(nb::module_& module) {
  nb::class_<Meeting>(module, "Hub", "Where the ranks of a process group meet.")
      .def(nb::init<const std::string&, int, const std::string&>(), nb::arg("bind_host"),
           nb::arg("world_size"), nb::arg("secret"))
      .def_prop_ro("port", &Meeting::port)
      .def("close", &Meeting::close, nb::arg("timeout_seconds"),
           "Returns when every rank that joined has left.");
  nb::class_<Group>(module, "ProcessGroup", "See ProcessGroup of the C++ code.")
      .def(nb::init<int, int, const std::string&, const std::string&, const std::string&, double>(),
           nb::arg("rank"), nb::arg("world_size"), nb::arg("hub"), nb::arg("job"),
           nb::arg("secret"), nb::arg("timeout_seconds"))
      .def("leave", &Group::leave)
      .def("barrier", &Group::barrier, nb::arg("tag"), nb::arg("ranks"), nb::arg("timeout_seconds"))
      .def("all_gather", &Group::all_gather, nb::arg("tag"), nb::arg("ranks"), nb::arg("mine"),
           nb::arg("timeout_seconds"))
      .def("broadcast", &Group::broadcast, nb::arg("tag"), nb::arg("ranks"), nb::arg("source"),
           nb::arg("address"), nb::arg("bytes"), nb::arg("keep_alive"), nb::arg("timeout_seconds"));
}

}  // namespace ckpt::python
