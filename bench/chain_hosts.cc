// One host of several that receive a checkpoint over a network: a rank with its worker. The time of
// an update beside that of its busiest link, and the bytes that went over this host's interfaces.
// tests/netns/chain.sh starts one of these in each of its network namespaces.
//
//   usage: chain_hosts --rank R --hosts N --rendezvous HOST:PORT [--bytes SIZE] [--owners one|all]
//                      [--updates N] [--rate BYTES_PER_SECOND] [--check]
//   Rank 0 prints the result. --check: exit code 1 when bytes are missing on a link, or more than
//   1.1 times of them went over it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/strings.h"
#include "checkpoint/split.h"
#include "support/job.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kJoinSeconds = 60;
/// Joining, agreeing and acknowledgements of TCP: what a link may carry beside 1.1 times its bytes.
constexpr double kControlBytes = 512 << 10;

struct Arguments {
  int rank = -1;
  int hosts = 0;
  std::string rendezvous;
  std::uint64_t bytes = 256 << 20;
  bool one_owner = true;
  int updates = 3;
  double rate = 125e6;
  bool check = false;
};

/// What went through the interfaces of this network namespace, without the loopback.
struct LinkBytes {
  double in = 0, out = 0;
};

LinkBytes link_bytes() {
  std::ifstream table("/proc/self/net/dev");
  LinkBytes sum;
  for (std::string line; std::getline(table, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).ends_with(" lo")) continue;
    std::istringstream fields(line.substr(colon + 1));
    std::vector<double> values;
    for (double value; fields >> value;) values.push_back(value);
    if (values.size() < 9) continue;
    sum.in += values[0];
    sum.out += values[8];
  }
  return sum;
}

/// What one host saw of one update.
struct Seen {
  double seconds = 0, prepare_seconds = 0, in = 0, out = 0, must_in = 0, must_out = 0;

  std::string to_text() const {
    std::ostringstream text;
    text.precision(17);
    text << seconds << ' ' << prepare_seconds << ' ' << in << ' ' << out << ' ' << must_in << ' '
         << must_out;
    return text.str();
  }
  static Seen from_text(const std::string& text) {
    std::istringstream fields(text);
    Seen seen;
    fields >> seen.seconds >> seen.prepare_seconds >> seen.in >> seen.out >> seen.must_in >>
        seen.must_out;
    return seen;
  }
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

/// The tensors of each rank.
std::vector<std::vector<std::uint32_t>> shares_of(const std::vector<ckpt::TensorInfo>& tensors,
                                                  const Arguments& arguments) {
  auto shares = ckpt::split_by_bytes(tensors, arguments.one_owner ? 1 : arguments.hosts);
  shares.resize(static_cast<std::size_t>(arguments.hosts));
  return shares;
}

class Host {
 public:
  Host(const Arguments& arguments, std::unique_ptr<ckpt::ParameterServer> server)
      : arguments_(arguments), server_(std::move(server)) {}

  ckpt::Status load();
  ckpt::Result<std::vector<Seen>> update();
  std::uint64_t total_bytes() const { return total_bytes_; }

 private:
  const Arguments& arguments_;
  std::unique_ptr<ckpt::ParameterServer> server_;
  ckpt::testing::TestEngine engine_{1};
  std::uint64_t total_bytes_ = 0;
  double must_in_ = 0, must_out_ = 0;
};

ckpt::Status Host::load() {
  const auto tensors = make_tensors(arguments_.bytes);
  const auto shares = shares_of(tensors, arguments_);
  std::vector<double> owned(shares.size(), 0);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (const std::uint32_t i : shares[rank]) owned[rank] += static_cast<double>(tensors[i].bytes);
  }
  for (const ckpt::TensorInfo& tensor : tensors) total_bytes_ += tensor.bytes;
  // Each host takes in what it does not hold, and gives the next one what that does not hold.
  const auto rank = static_cast<std::size_t>(arguments_.rank);
  must_in_ = static_cast<double>(total_bytes_) - owned[rank];
  must_out_ = static_cast<double>(total_bytes_) - owned[(rank + 1) % owned.size()];

  std::vector<ckpt::testing::OwnedTensor> mine;
  ckpt::Registration part;
  for (const std::uint32_t i : shares[rank]) {
    mine.push_back(ckpt::testing::random_tensor(tensors[i].name, tensors[i].bytes, i));
    part.tensors.push_back({tensors[i], mine.back().bytes.data()});
  }
  CKPT_RETURN_IF_ERROR(server_->register_checkpoint("chain", part));
  return server_->gather_metas("chain");
}

/// One update; what every host saw of it.
ckpt::Result<std::vector<Seen>> Host::update() {
  const auto call = [this](const std::vector<ckpt::WorkerAddress>& all,
                           ckpt::EngineCallContext& context) -> ckpt::Status {
    CKPT_ASSIGN_OR_RETURN(const auto addresses, ckpt::engine_instance(all, context.rank(), 1));
    return engine_.update(addresses);
  };
  ckpt::UpdateOptions options;
  options.instance_size = 1;
  options.engine_answer_means_done = true;
  CKPT_RETURN_IF_ERROR(server_->barrier(kJoinSeconds));
  Seen seen;
  seen.must_in = must_in_;
  seen.must_out = must_out_;
  const LinkBytes before = link_bytes();
  const auto begin = Clock::now();
  CKPT_ASSIGN_OR_RETURN(auto prepared, server_->prepare("chain", options));
  seen.prepare_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CKPT_ASSIGN_OR_RETURN(const auto report, server_->commit(std::move(prepared), call));
  seen.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  CKPT_RETURN_IF_ERROR(server_->barrier(kJoinSeconds));
  const LinkBytes after = link_bytes();
  seen.in = after.in - before.in;
  seen.out = after.out - before.out;
  if (report.verified_tensors != report.total_tensors ||
      report.received_bytes != static_cast<std::uint64_t>(must_in_)) {
    return ckpt::internal_error(ckpt::concat("rank ", arguments_.rank, " verified ",
                                             report.verified_tensors, " of ", report.total_tensors,
                                             " tensors and received ", report.received_bytes,
                                             " bytes, not ", static_cast<std::uint64_t>(must_in_)));
  }
  CKPT_ASSIGN_OR_RETURN(const auto all, server_->all_gather(seen.to_text(), kJoinSeconds));
  std::vector<Seen> hosts;
  for (const std::string& text : all) hosts.push_back(Seen::from_text(text));
  return hosts;
}

/// Of all directions of all links: the largest of carried / needed, and whether every byte went
/// over them.
struct LinkCheck {
  double most = 0;
  bool all_there = true, none_twice = true;
};

LinkCheck check_links(const std::vector<Seen>& hosts) {
  LinkCheck check;
  const auto look = [&](double carried, double must) {
    check.all_there &= carried >= must;
    check.none_twice &= carried <= 1.1 * must + kControlBytes;
    if (must > 0) check.most = std::max(check.most, carried / must);
  };
  for (const Seen& seen : hosts) {
    look(seen.in, seen.must_in);
    look(seen.out, seen.must_out);
  }
  return check;
}

int run(const Arguments& arguments) {
  const auto fail = [&](const ckpt::Status& status) {
    std::fprintf(stderr, "chain_hosts: rank %d: %s\n", arguments.rank, status.to_string().c_str());
    return 1;
  };
  ckpt::ParameterServerOptions options;
  options.rank = arguments.rank;
  options.world_size = arguments.hosts;
  options.local_rank = 0;
  options.rendezvous = arguments.rendezvous;
  options.job = "chain-hosts";
  options.host_id = ckpt::concat("host-", arguments.rank);
  options.device = "host";
  options.load_threads = 1;
  options.join_timeout_seconds = kJoinSeconds;
  auto server = ckpt::ParameterServer::create(std::move(options));
  if (!server) return fail(server.status());
  Host host(arguments, std::move(*server));
  if (const ckpt::Status status = host.load(); !status.is_ok()) return fail(status);

  std::vector<double> seconds, prepares;
  LinkCheck links;
  double must = 0;
  for (int i = 0; i <= arguments.updates; ++i) {
    auto hosts = host.update();
    if (!hosts) return fail(hosts.status());
    const LinkCheck update = check_links(*hosts);
    links.most = std::max(links.most, update.most);
    links.all_there &= update.all_there;
    links.none_twice &= update.none_twice;
    if (i == 0) continue;  // connects, and touches the workers' memory
    const auto largest = [&](auto member) { return std::ranges::max(*hosts, {}, member).*member; };
    seconds.push_back(largest(&Seen::seconds));
    prepares.push_back(largest(&Seen::prepare_seconds));
    must = std::max(largest(&Seen::must_in), largest(&Seen::must_out));
  }
  if (arguments.rank != 0) return 0;
  std::ranges::sort(seconds);
  std::ranges::sort(prepares);
  const double median = seconds[seconds.size() / 2], line = must / arguments.rate;
  std::printf("%5d %6s %10s %12.3f %10.3f %7.2f %7.2f..%.2f %12.3f %14.3f  %s\n", arguments.hosts,
              arguments.one_owner ? "one" : "all", ckpt::format_bytes(host.total_bytes()).c_str(),
              line, median, median / line, seconds.front() / line, seconds.back() / line,
              prepares[prepares.size() / 2], links.most,
              !links.all_there    ? "bytes went elsewhere"
              : !links.none_twice ? "too many bytes"
                                  : "ok");
  return arguments.check && !(links.all_there && links.none_twice) ? 1 : 0;
}

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--check") {
      arguments.check = true;
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
    } else if (name == "--bytes") {
      const auto bytes = ckpt::parse_bytes(value);
      if (!bytes) return false;
      arguments.bytes = *bytes;
    } else if (name == "--owners" && (value == "one" || value == "all")) {
      arguments.one_owner = value == "one";
    } else if (name == "--updates") {
      arguments.updates = std::stoi(value);
    } else if (name == "--rate") {
      arguments.rate = std::stod(value);
    } else {
      return false;
    }
  }
  return arguments.rank >= 0 && arguments.rank < arguments.hosts && !arguments.rendezvous.empty() &&
         arguments.updates > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: chain_hosts --rank R --hosts N --rendezvous HOST:PORT [--bytes SIZE] "
                 "[--owners one|all] [--updates N] [--rate BYTES_PER_SECOND] [--check]\n");
    return 2;
  }
  return run(arguments);
}
