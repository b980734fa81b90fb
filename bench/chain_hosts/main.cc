// One host of several that receive a checkpoint over a network: a rank with its worker. The time of
// an update beside that of its busiest link and that of plain sockets that pass the same bytes on
// (relay.h), the processor's seconds in both, and the bytes that went over the hosts' interfaces.
// tests/netns/chain.sh starts one of these in each of its network namespaces.
//
//   usage: chain_hosts --rank R --hosts N --rendezvous HOST:PORT [--bytes SIZE] [--owners one|all]
//                      [--updates N] [--rate BYTES_PER_SECOND] [--ring-size SIZE] [--check]
//                      [--at-most RATIO]
//   Rank 0 prints the result. --check: exit code 1 when bytes are missing on a link, or more than
//   1.1 times of them went over it. --at-most: the same when an update takes longer than so many
//   times the line.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/strings.h"
#include "host.h"

namespace ckpt::bench {
namespace {

/// What a link may carry beside 1.1 times its bytes: joining and agreeing, and for what goes the
/// other way requests and the acknowledgements of TCP.
constexpr double kControlBytes = 512 << 10;
constexpr double kControlShare = 0.01;

/// Of all directions of all links: the largest of carried / needed, and whether every byte went
/// over them, once.
struct LinkCheck {
  double most = 0;
  bool all_there = true, none_twice = true;

  void look(double carried, double must, double other_way) {
    all_there &= carried >= must;
    none_twice &= carried <= 1.1 * must + kControlShare * other_way + kControlBytes;
    if (must > 0) most = std::max(most, carried / must);
  }
  bool ok() const { return all_there && none_twice; }
  const char* verdict() const {
    return !all_there ? "bytes went elsewhere" : !none_twice ? "too many bytes" : "ok";
  }
};

/// Several moves of the same bytes by all hosts.
class Moves {
 public:
  void add(const std::vector<Seen>& hosts) {
    const auto largest = [&](auto member) { return std::ranges::max(hosts, {}, member).*member; };
    seconds_.push_back(largest(&Seen::seconds));
    prepares_.push_back(largest(&Seen::prepare_seconds));
    double cpu = 0, moved = 0;
    for (const Seen& seen : hosts) {
      cpu += seen.cpu_seconds;
      moved += seen.must_in;
    }
    cpu_per_byte_.push_back(cpu / moved);
    must_ = std::max({must_, largest(&Seen::must_in), largest(&Seen::must_out)});
  }

  /// Medians, of the slowest host.
  double seconds() const { return median(seconds_); }
  double prepare_seconds() const { return median(prepares_); }
  /// Of all hosts together, for each byte that one of them took in.
  double cpu_seconds_per_byte() const { return median(cpu_per_byte_); }
  double fastest() const { return std::ranges::min(seconds_); }
  double slowest() const { return std::ranges::max(seconds_); }
  /// Bytes over the busiest link.
  double must() const { return must_; }

 private:
  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  }
  std::vector<double> seconds_, prepares_, cpu_per_byte_;
  double must_ = 0;
};

void print(const Arguments& arguments, std::uint64_t bytes, const Moves& relay,
           const Moves& updates, const LinkCheck& links) {
  const double line = updates.must() / arguments.rate;
  std::printf("%d hosts, %s, %s: line %.3f s\n", arguments.hosts,
              arguments.one_owner ? "one owner" : "all own a share", format_bytes(bytes).c_str(),
              line);
  std::printf("  relay   %8.3f s  %5.2f of the line (%.2f to %.2f)  cpu %.2f ns/byte\n",
              relay.seconds(), relay.seconds() / line, relay.fastest() / line,
              relay.slowest() / line, 1e9 * relay.cpu_seconds_per_byte());
  std::printf(
      "  update  %8.3f s  %5.2f of the line (%.2f to %.2f)  cpu %.2f ns/byte  prepare %.3f s  "
      "%.2f of the relay\n",
      updates.seconds(), updates.seconds() / line, updates.fastest() / line,
      updates.slowest() / line, 1e9 * updates.cpu_seconds_per_byte(), updates.prepare_seconds(),
      updates.seconds() / relay.seconds());
  std::printf("  links carried %.3f of the bytes at most: %s\n", links.most, links.verdict());
}

Status run(const Arguments& arguments, bool& as_it_should) {
  CKPT_ASSIGN_OR_RETURN(const auto host, Host::create(arguments));
  Moves relay, updates;
  LinkCheck links;
  // The first of each connects, and touches memory.
  for (int i = 0; i <= arguments.updates; ++i) {
    CKPT_ASSIGN_OR_RETURN(const auto hosts, host->relay());
    if (i > 0) relay.add(hosts);
  }
  host->end_relay();
  for (int i = 0; i <= arguments.updates; ++i) {
    CKPT_ASSIGN_OR_RETURN(const auto hosts, host->update());
    for (const Seen& seen : hosts) {
      links.look(seen.in, seen.must_in, seen.must_out);
      links.look(seen.out, seen.must_out, seen.must_in);
    }
    if (i > 0) updates.add(hosts);
  }
  if (arguments.rank == 0) print(arguments, host->total_bytes(), relay, updates, links);
  const bool in_time = arguments.at_most == 0 ||
                       updates.seconds() <= arguments.at_most * updates.must() / arguments.rate;
  as_it_should = in_time && (links.ok() || !arguments.check);
  return Status::ok();
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
      const auto bytes = parse_bytes(value);
      if (!bytes) return false;
      arguments.bytes = *bytes;
    } else if (name == "--ring-size") {
      const auto bytes = parse_bytes(value);
      if (!bytes) return false;
      arguments.ring_bytes = *bytes;
    } else if (name == "--owners" && (value == "one" || value == "all")) {
      arguments.one_owner = value == "one";
    } else if (name == "--updates") {
      arguments.updates = std::stoi(value);
    } else if (name == "--at-most") {
      arguments.at_most = std::stod(value);
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
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  ckpt::bench::Arguments arguments;
  if (!ckpt::bench::parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: chain_hosts --rank R --hosts N --rendezvous HOST:PORT [--bytes SIZE] "
                 "[--owners one|all] [--updates N] [--rate BYTES_PER_SECOND] [--ring-size SIZE] "
                 "[--check] [--at-most RATIO]\n");
    return 2;
  }
  bool as_it_should = false;
  const ckpt::Status status = ckpt::bench::run(arguments, as_it_should);
  if (!status.is_ok()) {
    std::fprintf(stderr, "chain_hosts: rank %d: %s\n", arguments.rank, status.to_string().c_str());
    return 1;
  }
  return arguments.rank == 0 && !as_it_should ? 1 : 0;
}
