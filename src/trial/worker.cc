// The worker of one rank: takes updates into device memory with the native receiver, and compares
// every byte when it is asked to.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_map>

#include "base/host.h"
#include "base/parallel.h"
#include "base/strings.h"
#include "checkpoint_engine/receiver.h"
#include "trial/pinned_memory.h"
#include "trial/processes.h"
#include "trial/roles.h"
#include "trial/weights.h"

namespace ckpt::bench {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kPiece = 32 << 20;
constexpr double kPatienceSeconds = 600;

/// Parameters as an engine has them: device memory that the receiver copies into.
class Parameters final : public Loader {
 public:
  static Result<std::unique_ptr<Parameters>> create(Device& device, const Weights& weights) {
    std::unique_ptr<Parameters> parameters(new Parameters(weights));
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < weights.tensors().size(); ++i) {
      parameters->places_[weights.tensors()[i].name] = {i, bytes};
      bytes += (weights.tensors()[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    CKPT_ASSIGN_OR_RETURN(parameters->memory_,
                          device.allocate(bytes, concat("gpu-update-", random_id())));
    parameters->memory_->close_to_others();
    CKPT_ASSIGN_OR_RETURN(parameters->stream_, device.make_stream());
    CKPT_ASSIGN_OR_RETURN(parameters->window_, PinnedMemory::create(device, kPiece));
    return parameters;
  }

  Result<std::span<std::byte>> destination(const TensorInfo& tensor) override {
    const auto place = places_.find(tensor.name);
    if (place == places_.end()) return invalid_argument("no such parameter");
    return std::span(memory_->data() + place->second.offset, tensor.bytes);
  }

  /// Overwrites everything, so that an update that brings nothing is found.
  Status poison() {
    std::memset(window_->data(), 0xA5, kPiece);
    for (std::uint64_t at = 0; at < memory_->size(); at += kPiece) {
      CKPT_RETURN_IF_ERROR(stream_->copy(memory_->data() + at, window_->data(),
                                         std::min(kPiece, memory_->size() - at)));
    }
    return finish_copies();
  }

  /// kDataLoss names the first tensor with a wrong byte.
  Status compare(ThreadPool& threads) {
    for (std::size_t i = 0; i < weights_.tensors().size(); ++i) {
      const TensorInfo& tensor = weights_.tensors()[i];
      const std::byte* here = memory_->data() + places_.at(tensor.name).offset;
      const std::byte* expected = weights_.expected(i).data();
      for (std::uint64_t at = 0; at < tensor.bytes; at += kPiece) {
        const std::uint64_t bytes = std::min(kPiece, tensor.bytes - at);
        CKPT_RETURN_IF_ERROR(stream_->copy(window_->data(), here + at, bytes));
        CKPT_RETURN_IF_ERROR(finish_copies());
        CKPT_RETURN_IF_ERROR(equal(threads, expected + at, bytes).with_context(tensor.name));
      }
    }
    return Status();
  }

 private:
  struct Place {
    std::size_t tensor;
    std::uint64_t offset;
  };

  explicit Parameters(const Weights& weights) : weights_(weights) {}

  Status finish_copies() {
    CKPT_ASSIGN_OR_RETURN(const auto ticket, stream_->mark());
    AbortSignal never;
    return stream_->wait(ticket, Deadline::after_seconds(kPatienceSeconds), never);
  }

  Status equal(ThreadPool& threads, const std::byte* expected, std::uint64_t bytes) {
    const std::uint64_t share = 1 << 20;
    return threads.for_each((bytes + share - 1) / share, [&](std::size_t i) {
      const std::uint64_t begin = i * share;
      const std::uint64_t count = std::min(share, bytes - begin);
      return std::memcmp(window_->data() + begin, expected + begin, count) == 0
                 ? Status()
                 : data_loss("differs from what was registered");
    });
  }

  const Weights& weights_;
  std::unordered_map<std::string, Place> places_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::unique_ptr<CopyStream> stream_;
  std::unique_ptr<PinnedMemory> window_;
};

Result<std::string> serve(const std::vector<std::string>& words, Parameters& parameters,
                          ThreadPool& threads) {
  if (words[0] == "ping") return "pong " + words[1];
  if (words[0] == "poison") {
    CKPT_RETURN_IF_ERROR(parameters.poison());
    return std::string("ok");
  }
  if (words[0] == "compare") {
    CKPT_RETURN_IF_ERROR(parameters.compare(threads));
    return std::string("ok");
  }
  ReceiverOptions options;
  options.verify = words[2] == "verify";
  const double cpu_begin = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  CKPT_ASSIGN_OR_RETURN(const ReceiveReport report, update_weights(words[1], parameters, options));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return concat("ok ", seconds, ' ', report.load_seconds, ' ', cpu_seconds() - cpu_begin);
}

}  // namespace

Status run_worker(const Settings& settings) {
  LineChannel rank{UniqueFd(settings.peer_fd)};
  const auto prepare_and_serve = [&]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto device, open_device(settings));
    ThreadPool threads(threads_of(settings));
    const Weights weights = weights_of(settings);
    CKPT_ASSIGN_OR_RETURN(const auto parameters, Parameters::create(*device, weights));
    while (true) {
      auto line = rank.receive(Deadline::after_seconds(kPatienceSeconds));
      if (!line) return Status();  // the rank is done with us
      auto answer = serve(split(*line, ' '), *parameters, threads);
      CKPT_RETURN_IF_ERROR(
          rank.send(answer.is_ok() ? *answer : "error " + answer.status().to_string()));
    }
  };
  const Status status = prepare_and_serve();
  // The rank says it for both; if it has gone, nobody is left to be told.
  if (!status.is_ok()) static_cast<void>(rank.send("error " + status.to_string()));
  return status;
}

}  // namespace ckpt::bench
