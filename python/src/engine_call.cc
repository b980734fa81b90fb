#include "engine_call.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "gil.h"

namespace ckpt::python {
namespace {

/// A call under way: made by the update's thread, finished by Python's, cancelled by any.
class RunningCall {
 public:
  explicit RunningCall(const std::vector<WorkerAddress>& all_ranks) {
    for (const WorkerAddress& worker : all_ranks)
      addresses_.emplace_back(worker.key, worker.address);
  }

  const std::vector<std::pair<std::string, std::string>>& addresses() const { return addresses_; }

  void finish(const std::optional<std::string>& error) {
    end(error ? peer_error(*error) : Status::ok());
  }
  void cancel() { end(aborted("the engine call was cancelled")); }

  bool cancelled() const {
    const std::lock_guard lock(mutex_);
    return outcome_ && outcome_->code() == StatusCode::kAborted;
  }

  Status wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return outcome_.has_value(); });
    return *outcome_;
  }

 private:
  void end(Status outcome) {
    {
      const std::lock_guard lock(mutex_);
      if (outcome_) return;
      outcome_ = std::move(outcome);
    }
    changed_.notify_all();
  }

  std::vector<std::pair<std::string, std::string>> addresses_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> outcome_;
};

}  // namespace

EngineCall make_engine_call(nb::callable start) {
  return [start = shared_object(std::move(start))](const std::vector<WorkerAddress>& all_ranks,
                                                   EngineCallContext& context) {
    const auto call = std::make_shared<RunningCall>(all_ranks);
    // The context cancels it at the latest when the update's deadline has passed.
    context.on_cancel([call] { call->cancel(); });
    {
      const nb::gil_scoped_acquire gil;
      try {
        (*start)(nb::cast(call));
      } catch (const nb::python_error& error) {
        return raised_by("the start of req_func", error);
      }
    }
    return call->wait();
  };
}

void bind_engine_call(nb::module_& module) {
  nb::class_<RunningCall>(module, "RunningCall", "A call to an engine that is under way.")
      .def_prop_ro("addresses", &RunningCall::addresses,
                   "(key, address) of every rank of the job, in rank order.")
      .def_prop_ro("cancelled", &RunningCall::cancelled, "The update is over: nobody waits.")
      .def("finish", &RunningCall::finish, nb::arg("error").none(),
           "The engine has answered; with an error, the update fails on every rank. Only the first "
           "one counts.");
}

}  // namespace ckpt::python
