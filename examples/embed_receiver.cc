// How a C++ inference engine takes new weights in place. Run without arguments it is its own
// trainer as well: it registers two tensors and updates itself. With an address (what the engine is
// given for its worker) it takes one update from there.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "checkpoint_engine/parameter_server.h"
#include "checkpoint_engine/receiver.h"

// The engine's side: say where each tensor goes; bytes are copied there and checked on the way.
class Engine : public ckpt::Loader {
 public:
  ckpt::Result<std::span<std::byte>> destination(const ckpt::TensorInfo& tensor) override {
    std::vector<std::byte>& weights = parameters_[tensor.name];
    weights.resize(tensor.bytes);
    return std::span(weights);
  }
  ckpt::Status finish() override {  // everything is here: rebuild what depends on the weights
    for (const auto& [name, weights] : parameters_)
      std::printf("%s: %zu bytes\n", name.c_str(), weights.size());
    return {};
  }

 private:
  std::map<std::string, std::vector<std::byte>> parameters_;
};

int main(int argc, char** argv) {
  Engine engine;
  const auto take = [&](const std::string& address) {
    const auto report = ckpt::update_weights(address, engine);
    if (report)
      std::printf("took %zu bytes, %zu tensors verified\n", size_t(report->bytes),
                  size_t(report->verified_tensors));
    return report.status();
  };
  const auto update_myself = [&]() -> ckpt::Status {
    const std::vector<std::byte> q(64 * 64 * 2, std::byte{1}), norm(64 * 4, std::byte{2});
    ckpt::ParameterServerOptions options;
    options.device = "host";
    CKPT_ASSIGN_OR_RETURN(auto server, ckpt::ParameterServer::create(options));
    CKPT_ASSIGN_OR_RETURN(auto q_info,
                          ckpt::make_tensor_info("q_proj.weight", ckpt::DType::kBF16, {64, 64}));
    CKPT_ASSIGN_OR_RETURN(auto norm_info,
                          ckpt::make_tensor_info("norm.weight", ckpt::DType::kF32, {64}));
    CKPT_RETURN_IF_ERROR(server->register_checkpoint(
        "step-1", {.tensors = {{q_info, q.data()}, {norm_info, norm.data()}}}));
    CKPT_RETURN_IF_ERROR(server->gather_metas("step-1"));
    return server
        ->update("step-1", [&](const auto& ranks, auto&) { return take(ranks[0].address); })
        .status();
  };
  const ckpt::Status status = argc > 1 ? take(argv[1]) : update_myself();
  if (!status) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status ? 0 : 1;
}
