#include "http/engine_calls.h"

#include "base/deadline.h"
#include "base/strings.h"

namespace ckpt {
namespace {

/// Forwards an interrupt to the signal of one call, for as long as the call runs.
class Forward {
 public:
  Forward(std::shared_ptr<AbortSignal> from, const std::shared_ptr<AbortSignal>& to)
      : from_(std::move(from)) {
    if (from_) key_ = from_->subscribe([to](const Status& cause) { to->raise(cause); });
  }
  ~Forward() {
    if (from_) from_->unsubscribe(key_);
  }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

 private:
  std::shared_ptr<AbortSignal> from_;
  int key_ = 0;
};

}  // namespace

Result<EngineChoice> parse_engine_choice(std::string_view text) {
  if (text == "vllm") return EngineChoice::kVllm;
  if (text == "vllm-native") return EngineChoice::kVllmNative;
  if (text == "sglang") return EngineChoice::kSglang;
  if (text == "none") return EngineChoice::kNone;
  return invalid_argument(
      concat("engine ", quoted(text), ": write vllm, vllm-native, sglang or none"));
}

EngineKind engine_kind(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::kVllmNative:
      return EngineKind::kVllmNative;
    case EngineChoice::kSglang:
      return EngineKind::kSglang;
    default:
      return EngineKind::kVllm;
  }
}

Status call_engine(const EngineClient& client, const std::map<std::string, std::string>& addresses,
                   const EngineUpdateOptions& options,
                   const std::shared_ptr<AbortSignal>& interrupt, EngineCallContext& context) {
  // Shared: the context may still hold the function below when this call has returned.
  const auto cancel = std::make_shared<AbortSignal>();
  context.on_cancel([cancel] { cancel->raise(aborted("the update has failed elsewhere")); });
  const Forward forward(interrupt, cancel);
  EngineUpdateOptions interruptible = options;
  interruptible.interrupt = interrupt;
  return client.update_weights(addresses, interruptible,
                               Deadline::after_seconds(context.remaining_seconds()), *cancel);
}

Result<Endpoint> instance_endpoint(const EngineCallOptions& options, int rank) {
  if (options.endpoints.size() == 1) return options.endpoints.front();
  const auto instance = static_cast<std::size_t>(rank / options.instance_size);
  if (instance >= options.endpoints.size()) {
    return invalid_argument(concat("instance ", instance, " (ranks from ", rank,
                                   ") has no endpoint: ", options.endpoints.size(),
                                   " are given; give one for each instance, or one for all"));
  }
  return options.endpoints[instance];
}

EngineCall make_engine_call(EngineCallOptions options) {
  return [options = std::move(options)](const std::vector<WorkerAddress>& all_ranks,
                                        EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(auto addresses,
                          engine_instance(all_ranks, context.rank(), options.instance_size));
    if (addresses.empty()) return Status::ok();
    if (options.engine == EngineChoice::kNone) {
      if (options.announce) options.announce(context.rank() / options.instance_size, addresses);
      return Status::ok();
    }
    CKPT_ASSIGN_OR_RETURN(Endpoint endpoint, instance_endpoint(options, context.rank()));
    const EngineClient client(engine_kind(options.engine), std::move(endpoint),
                              options.bearer_token, options.observer);
    return call_engine(client, addresses, options.update, options.interrupt, context);
  };
}

}  // namespace ckpt
