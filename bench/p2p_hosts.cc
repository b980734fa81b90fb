// One host of a P2P update over a network: a rank that owns a share of a checkpoint and serves it,
// or a rank of another job that fills its worker from the owners' memory. Seconds of an update.
// tests/netns/p2p.sh starts them in network namespaces, and says what the busiest link needs.
//
//   usage: p2p_hosts owner|target --rank R --hosts N --rendezvous HOST:PORT --metas FILE
//                    [--bytes SIZE] [--replicas] [--updates N] [--offer FILE] [--own-updates]
//   An owner writes FILE (rank 0) and serves until its stdin ends. --replicas: every owner has
//   everything. A target waits for FILE; rank 0 prints the median of its updates, and the shortest
//   and longest. --offer: it keeps what arrives, writes FILE for targets of a further job, and
//   serves those until its stdin ends. --updates 0: one update, the first of all.
//   --own-updates: an owner updates a worker of its own meanwhile, again and again, and prints the
//   seconds of each.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "checkpoint/split.h"
#include "support/job.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kJoinSeconds = 60;

struct Arguments {
  bool owner = false;
  int rank = -1;
  int hosts = 0;
  std::string rendezvous, metas;
  std::uint64_t bytes = 256 << 20;
  bool replicas = false;
  int updates = 3;
  std::string offer;
  bool own_updates = false;
};

std::vector<ckpt::TensorInfo> make_tensors(std::uint64_t bytes) {
  std::vector<ckpt::TensorInfo> tensors;
  std::uint64_t total = 0;
  for (int layer = 0; total < bytes; ++layer) {
    for (const char* name : {"self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      tensors.push_back(
          *ckpt::make_tensor_info(ckpt::concat("model.layers.", layer, ".", name, ".weight"),
                                  ckpt::DType::kBF16, {512, 1024}));
      total += tensors.back().bytes;
    }
  }
  return tensors;
}

ckpt::Status write_metas(ckpt::ParameterServer& server, const std::string& path) {
  CKPT_ASSIGN_OR_RETURN(const std::string metas, server.export_metas());
  const std::string unfinished = path + ".part";
  std::ofstream(unfinished) << metas;
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return ckpt::io_error(ckpt::concat("cannot write ", path));
  }
  return ckpt::Status();
}

void wait_for_end_of_stdin() {
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

ckpt::Result<ckpt::UpdateReport> update(ckpt::ParameterServer& server,
                                        ckpt::testing::TestEngine& engine) {
  ckpt::UpdateOptions options;
  options.instance_size = 1;
  options.engine_answer_means_done = true;
  return server.update(
      "p2p",
      [&](const std::vector<ckpt::WorkerAddress>& all,
          ckpt::EngineCallContext& context) -> ckpt::Status {
        CKPT_ASSIGN_OR_RETURN(const auto addresses, ckpt::engine_instance(all, context.rank(), 1));
        return engine.update(addresses);
      },
      options);
}

/// Until stdin ends.
ckpt::Status update_own_worker(ckpt::ParameterServer& server) {
  ckpt::testing::TestEngine engine(1);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (::poll(&input, 1, 0) == 0) {
    const auto begin = Clock::now();
    CKPT_RETURN_IF_ERROR(update(server, engine).status());
    std::printf("%.4f\n", std::chrono::duration<double>(Clock::now() - begin).count());
    std::fflush(stdout);
  }
  return ckpt::Status();
}

ckpt::Status serve(const Arguments& arguments, ckpt::ParameterServer& server) {
  const auto tensors = make_tensors(arguments.bytes);
  const auto shares = ckpt::split_by_bytes(tensors, arguments.replicas ? 1 : arguments.hosts);
  const std::size_t own = arguments.replicas ? 0 : static_cast<std::size_t>(arguments.rank);
  {
    std::vector<ckpt::testing::OwnedTensor> mine;
    ckpt::Registration part;
    for (const std::uint32_t i : shares[own]) {
      mine.push_back(ckpt::testing::random_tensor(tensors[i].name, tensors[i].bytes, i));
      part.tensors.push_back({tensors[i], mine.back().bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("p2p", part));
  }
  CKPT_RETURN_IF_ERROR(server.gather_metas("p2p"));
  if (arguments.rank == 0) CKPT_RETURN_IF_ERROR(write_metas(server, arguments.metas));
  if (arguments.own_updates) return update_own_worker(server);
  wait_for_end_of_stdin();
  return ckpt::Status();
}

ckpt::Status fill(const Arguments& arguments, ckpt::ParameterServer& server) {
  std::ifstream file;
  for (int i = 0; i < 6000 && !file.is_open(); ++i) {
    file.open(arguments.metas);
    if (!file.is_open()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::stringstream text;
  text << file.rdbuf();
  CKPT_RETURN_IF_ERROR(server.load_metas(text.str()));
  if (!arguments.offer.empty()) {
    CKPT_RETURN_IF_ERROR(server.offer_loaded());
    if (arguments.rank == 0) CKPT_RETURN_IF_ERROR(write_metas(server, arguments.offer));
  }
  ckpt::testing::TestEngine engine(1);
  std::vector<double> seconds;
  for (int i = 0; i <= arguments.updates; ++i) {
    CKPT_RETURN_IF_ERROR(server.barrier(kJoinSeconds));
    const auto begin = Clock::now();
    CKPT_ASSIGN_OR_RETURN(const auto report, update(server, engine));
    const double taken = std::chrono::duration<double>(Clock::now() - begin).count();
    if (report.verified_tensors != report.total_tensors) {
      return ckpt::internal_error("not every tensor was verified");
    }
    // The first one touches the workers' memory.
    if (i > 0 || arguments.updates == 0) seconds.push_back(taken);
    if (i < arguments.updates || arguments.rank != 0) continue;
    std::ranges::sort(seconds);
    std::printf("%.3f %.3f..%.3f\n", seconds[seconds.size() / 2], seconds.front(), seconds.back());
    std::fflush(stdout);
  }
  if (!arguments.offer.empty()) wait_for_end_of_stdin();
  return ckpt::Status();
}

int run(const Arguments& arguments) {
  ckpt::ParameterServerOptions options;
  options.rank = arguments.rank;
  options.world_size = arguments.hosts;
  options.local_rank = 0;
  options.rendezvous = arguments.rendezvous;
  options.job = arguments.owner ? "p2p-owners" : "p2p-targets";
  options.host_id = ckpt::concat(options.job, "-", arguments.rendezvous, "-", arguments.rank);
  options.device = "host";
  options.load_threads = 1;
  options.join_timeout_seconds = kJoinSeconds;
  auto server = ckpt::ParameterServer::create(std::move(options));
  ckpt::Status status = server.status();
  if (status.is_ok()) {
    status = arguments.owner ? serve(arguments, **server) : fill(arguments, **server);
  }
  if (status.is_ok()) return 0;
  std::fprintf(stderr, "p2p_hosts: %s %d: %s\n", arguments.owner ? "owner" : "target",
               arguments.rank, status.to_string().c_str());
  return 1;
}

bool parse(int argc, char** argv, Arguments& arguments) {
  if (argc < 2) return false;
  const std::string role = argv[1];
  if (role != "owner" && role != "target") return false;
  arguments.owner = role == "owner";
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--replicas" || name == "--own-updates") {
      (name == "--replicas" ? arguments.replicas : arguments.own_updates) = true;
      continue;
    }
    if (++i == argc) return false;
    const std::string value = argv[i];
    if (name == "--rank") {
      arguments.rank = std::stoi(value);
    } else if (name == "--hosts") {
      arguments.hosts = std::stoi(value);
    } else if (name == "--rendezvous") {
      arguments.rendezvous = value;
    } else if (name == "--metas") {
      arguments.metas = value;
    } else if (name == "--bytes") {
      const auto bytes = ckpt::parse_bytes(value);
      if (!bytes) return false;
      arguments.bytes = *bytes;
    } else if (name == "--updates") {
      arguments.updates = std::stoi(value);
    } else if (name == "--offer") {
      arguments.offer = value;
    } else {
      return false;
    }
  }
  return arguments.rank >= 0 && arguments.rank < arguments.hosts && arguments.updates >= 0 &&
         !arguments.rendezvous.empty() && !arguments.metas.empty();
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: p2p_hosts owner|target --rank R --hosts N --rendezvous HOST:PORT --metas "
                 "FILE [--bytes SIZE] [--replicas] [--updates N] [--offer FILE]\n");
    return 2;
  }
  return run(arguments);
}
