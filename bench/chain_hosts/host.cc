#include "host.h"

#include <chrono>

#include "base/strings.h"
#include "checkpoint/split.h"

namespace ckpt::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kJoinSeconds = 60;
constexpr double kRelaySeconds = 120;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<TensorInfo> make_tensors(std::uint64_t bytes) {
  std::vector<TensorInfo> tensors;
  std::uint64_t total = 0;
  for (int layer = 0; total < bytes; ++layer) {
    for (const char* name : {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      tensors.push_back(*make_tensor_info(concat("model.layers.", layer, ".", name, ".weight"),
                                          DType::kBF16, {512, 1024}));
      total += tensors.back().bytes;
    }
  }
  return tensors;
}

/// The tensors of each rank.
std::vector<std::vector<std::uint32_t>> shares_of(const std::vector<TensorInfo>& tensors,
                                                  const Arguments& arguments) {
  auto shares = split_by_bytes(tensors, arguments.one_owner ? 1 : arguments.hosts);
  shares.resize(static_cast<std::size_t>(arguments.hosts));
  return shares;
}

}  // namespace

Result<std::unique_ptr<Host>> Host::create(const Arguments& arguments) {
  std::unique_ptr<Host> host(new Host(arguments));
  CKPT_RETURN_IF_ERROR(host->join());
  CKPT_RETURN_IF_ERROR(host->load());
  return host;
}

Status Host::join() {
  ParameterServerOptions options;
  options.rank = arguments_.rank;
  options.world_size = arguments_.hosts;
  options.local_rank = 0;
  options.rendezvous = arguments_.rendezvous;
  options.job = "chain-hosts";
  options.host_id = concat("host-", arguments_.rank);
  options.device = "host";
  options.load_threads = 1;
  options.ring_bytes = arguments_.ring_bytes;
  options.join_timeout_seconds = kJoinSeconds;
  CKPT_ASSIGN_OR_RETURN(server_, ParameterServer::create(std::move(options)));
  return Status::ok();
}

Status Host::load() {
  const auto tensors = make_tensors(arguments_.bytes);
  const auto shares = shares_of(tensors, arguments_);
  std::vector<std::uint64_t> owned(shares.size(), 0);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::uint32_t i : shares[rank]) owned[rank] += tensors[i].bytes;
  }
  for (const TensorInfo& tensor : tensors) total_bytes_ += tensor.bytes;
  // Each host takes in what it does not hold, and gives the next one what that does not hold.
  const auto rank = static_cast<std::size_t>(arguments_.rank);
  own_bytes_ = owned[rank];
  must_in_ = total_bytes_ - owned[rank];
  must_out_ = total_bytes_ - owned[(rank + 1) % owned.size()];

  std::vector<testing::OwnedTensor> mine;
  Registration part;
  for (const std::uint32_t i : shares[rank]) {
    mine.push_back(testing::random_tensor(tensors[i].name, tensors[i].bytes, i));
    part.tensors.push_back({tensors[i], mine.back().bytes.data()});
  }
  CKPT_RETURN_IF_ERROR(server_->register_checkpoint("chain", part));
  return server_->gather_metas("chain");
}

Result<std::vector<Seen>> Host::measure(const std::function<Status(Seen&)>& body) {
  CKPT_RETURN_IF_ERROR(server_->barrier(kJoinSeconds));
  Seen seen;
  seen.must_in = static_cast<double>(must_in_);
  seen.must_out = static_cast<double>(must_out_);
  const LinkBytes before = LinkBytes::now();
  const double cpu = cpu_seconds();
  const auto begin = Clock::now();
  CKPT_RETURN_IF_ERROR(body(seen));
  seen.seconds = seconds_since(begin);
  CKPT_RETURN_IF_ERROR(server_->barrier(kJoinSeconds));
  seen.cpu_seconds = cpu_seconds() - cpu;
  const LinkBytes after = LinkBytes::now();
  seen.in = after.in - before.in;
  seen.out = after.out - before.out;
  CKPT_ASSIGN_OR_RETURN(const auto all, server_->all_gather(seen.to_text(), kJoinSeconds));
  std::vector<Seen> hosts;
  for (const std::string& text : all) hosts.push_back(Seen::from_text(text));
  return hosts;
}

Result<std::vector<Seen>> Host::update() {
  const auto call = [this](const std::vector<WorkerAddress>& all,
                           EngineCallContext& context) -> Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses, engine_instance(all, context.rank(), 1));
    return engine_.update(addresses);
  };
  UpdateOptions options;
  options.instance_size = 1;
  options.engine_answer_means_done = true;
  return measure([&](Seen& seen) -> Status {
    const auto begin = Clock::now();
    CKPT_ASSIGN_OR_RETURN(auto prepared, server_->prepare("chain", options));
    seen.prepare_seconds = seconds_since(begin);
    CKPT_ASSIGN_OR_RETURN(const auto report, server_->commit(std::move(prepared), call));
    if (report.verified_tensors == report.total_tensors && report.received_bytes == must_in_) {
      return Status::ok();
    }
    return internal_error(concat("rank ", arguments_.rank, " verified ", report.verified_tensors,
                                 " of ", report.total_tensors, " tensors and received ",
                                 report.received_bytes, " bytes, not ", must_in_));
  });
}

Result<std::vector<Seen>> Host::relay() {
  if (!relay_) {
    CKPT_ASSIGN_OR_RETURN(auto made, Relay::connect(
                                         arguments_.rank, arguments_.rendezvous,
                                         [this](const std::string& mine) {
                                           return server_->all_gather(mine, kJoinSeconds);
                                         },
                                         Deadline::after_seconds(kJoinSeconds)));
    relay_ = std::make_unique<Relay>(std::move(made));
  }
  return measure([&](Seen&) {
    return relay_->run({own_bytes_, must_in_, must_out_}, Deadline::after_seconds(kRelaySeconds));
  });
}

}  // namespace ckpt::bench
