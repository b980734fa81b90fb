#include "engine_client.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <memory>
#include <string>

#include "base/abort_signal.h"
#include "base/deadline.h"
#include "errors.h"
#include "http/engine_client.h"
#include "http/service_requests.h"
#include "interruptible.h"

namespace ckpt::python {
namespace {

void update_engine(const std::string& url, const std::map<std::string, std::string>& addresses,
                   double timeout_seconds, const std::string& uds, const std::string& token) {
  const UpdateTarget target = value_or_raise(parse_update_target(url, uds));
  const auto interrupt = std::make_shared<AbortSignal>();
  interruptible(
      [=] {
        EngineUpdateOptions options;
        options.interrupt = interrupt;
        if (!target.path.empty()) options.rpc_path = target.path;
        options.query = target.query;
        return EngineClient(target.kind, target.endpoint, token)
            .update_weights(addresses, options, Deadline::after_seconds(timeout_seconds),
                            *interrupt);
      },
      [interrupt] { interrupt->raise(aborted("interrupted by the user")); });
}

}  // namespace

void bind_engine_client(nb::module_& module) {
  module.def("update_engine", &update_engine, nb::arg("url"), nb::arg("addresses"),
             nb::arg("timeout_seconds"), nb::arg("uds"), nb::arg("token"),
             "Tells the engine at `url` to update, and returns when it has answered.");
}

}  // namespace ckpt::python
