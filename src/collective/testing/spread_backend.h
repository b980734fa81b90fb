// The backends of spreading as their contract suite sees them: how the ranks of a pass get their
// devices, transports and lanes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "collective/chain/chain_spread.h"
#include "collective/peer/peer_spread.h"
#include "collective/spread.h"
#include "device/device.h"
#include "transport/testing/fake_network.h"

namespace ckpt::testing {

/// One rank in one pass: what its lanes are made of. The referred objects outlive the lanes.
struct RankPass {
  int rank;
  std::uint64_t epoch;
  std::uint32_t pass;
  Device& device;
  const Plan& plan;
  const Schedule& schedule;
  Progress& progress;  ///< of the rank's host
  const HostProgressLayout& layout;
  RingCredits space;
  PullProgress pulled;
  std::byte* ring;
  std::byte* fill_staging;                ///< null without
  ReceiveTarget received;                 ///< where a transport puts what it reads
  std::map<StreamKey, Staging> stagings;  ///< of every stream in the pull list
  Transport* transport;                   ///< null without; so are the next three
  ProgressSignals* signals;
  std::map<int, RemoteMemory> pools;  ///< of the owners that the rank reads
  std::map<int, RemoteMemory> rings;  ///< or stagings, of the stops before and behind the rank
  /// Where recipients of all hosts are spread to at once: whom the rank tells of its progress, with
  /// their descriptors.
  std::map<int, std::vector<std::byte>> listeners;
  std::vector<std::byte> key;  ///< what SpreadBackend::make_key gave to the first of all
};

using Spreads = std::vector<std::unique_ptr<Spread>>;

struct SpreadBackend {
  std::string name;
  RingSharing sharing;
  std::function<std::shared_ptr<Device>(int rank)> make_device;
  /// May be empty, for a backend that needs no transport.
  std::function<std::shared_ptr<Transport>(FakeNetwork&, int rank)> make_transport;
  /// What its death looks like to the others.
  std::function<void(FakeNetwork&, Transport&)> kill;
  /// The lanes of one rank, each to be run on a thread of its own.
  std::function<Result<Spreads>(RankPass&)> make_spreads;
  bool on_fake_network;  ///< the verbs of FakeNetwork reach it
  /// Spreads to recipients of all hosts at once, where every owner is one.
  bool spreads_over_hosts = false;
  /// False: no transport and no processor reaches rings and the staging of owners.
  bool in_host_memory = true;
  /// Why it cannot be tried on this machine; may be empty. A process that has asked may not be
  /// forked any more (CUDA).
  std::function<Status()> check = {};
  /// May be empty. Called by one rank in a pass.
  std::function<Result<std::vector<std::byte>>()> make_key = {};
};

/// For the names of tests.
inline void PrintTo(const SpreadBackend& backend, std::ostream* out) { *out << backend.name; }

/// Of ranks that are threads of one process.
std::vector<SpreadBackend> spread_backends();
/// Of ranks of one host that are a process each.
std::vector<SpreadBackend> process_backends();
/// The one of them that is called `name`.
SpreadBackend spread_backend(std::string_view name);

}  // namespace ckpt::testing
