#include "collective/testing/spread_job.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/host.h"
#include "base/strings.h"
#include "collective/nccl/host_credits.h"
#include "collective/testing/guarded_buffer.h"
#include "collective/testing/must.h"
#include "collective/testing/pass_lanes.h"
#include "transport/testing/hex.h"

namespace ckpt::testing {
namespace {

/// What the ranks of a host share in a pass.
struct HostBoard {
  HostProgressLayout layout;
  std::optional<Progress> progress;  ///< none until it is opened
};

std::string encode(const BufferHandle& handle) {
  return concat(static_cast<int>(handle.kind), ' ', handle.bytes, ' ', handle.shared_memory, ' ',
                to_hex(handle.ipc), ' ', handle.device_uuid);
}

BufferHandle decode_handle(std::span<const std::string> words) {
  return {.kind = static_cast<DeviceKind>(std::stoi(words[0])),
          .bytes = std::stoull(words[1]),
          .shared_memory = words[2],
          .ipc = from_hex(words[3]),
          .device_uuid = words[4]};
}

std::vector<int> hosts_of(const Topology& topology) {
  std::vector<int> hosts;
  for (const PlanRank& rank : topology.ranks) hosts.push_back(rank.host);
  return hosts;
}

bool all_owners_are_recipients(const Topology& topology) {
  for (const CatalogTensor& tensor : topology.catalog.tensors()) {
    for (const Replica& replica : topology.catalog.replicas(tensor)) {
      if (!topology.ranks[static_cast<std::size_t>(replica.rank)].recipient) return false;
    }
  }
  return true;
}

}  // namespace

/// Everything that lives for one pass. Members end in the reverse order: lanes first, then
/// connections, then what others read, then memory.
struct SpreadJob::Pass {
  struct Memory {
    GuardedBuffer* ring = nullptr;
    std::unique_ptr<GuardedBuffer> own_ring, fill_staging, receive_staging;
  };

  std::map<int, HostBoard> boards;                             // by host
  std::map<int, std::unique_ptr<GuardedBuffer>> shared_rings;  // by host
  std::map<int, Memory> memories;                              // by recipient, as all below
  std::map<int, std::unique_ptr<MemoryRegion>> regions;
  std::map<int, Published> published;                   // by rank
  std::map<int, std::unique_ptr<DeviceBuffer>> opened;  // staging of ranks elsewhere, by rank
  std::map<int, std::vector<std::unique_ptr<Peer>>> peers;
  std::map<int, std::unique_ptr<RankPass>> ranks;
  std::map<int, Spreads> spreads;
  std::map<int, AbortSignal> aborts;

  std::vector<GuardedBuffer*> buffers() const {
    std::vector<GuardedBuffer*> all;
    for (const auto& [host, ring] : shared_rings) all.push_back(ring.get());
    for (const auto& [rank, memory] : memories) {
      for (const auto* buffer : {&memory.own_ring, &memory.fill_staging, &memory.receive_staging}) {
        if (*buffer) all.push_back(buffer->get());
      }
    }
    return all;
  }

  /// Lets nobody read any more, then looks for writes.
  std::string watch(std::chrono::milliseconds time) {
    for (const auto& [rank, region] : regions) region->close(Deadline::after_seconds(10));
    const std::vector<GuardedBuffer*> all = buffers();
    for (GuardedBuffer* buffer : all) buffer->paint_canary();
    std::this_thread::sleep_for(time);
    for (GuardedBuffer* buffer : all) {
      if (!buffer->guards_hold()) return "memory beside a ring or staging was written to";
      if (!buffer->canary_holds()) return "a ring or staging was written to after the pass";
    }
    return "";
  }
};

std::string PassOutcome::text() const {
  std::string text = concat("cause: ", cause.to_string(), stray_write.empty() ? "" : "\n");
  text += stray_write;
  for (const LaneOutcome& lane : lanes) {
    if (lane.status.is_ok()) continue;
    text += concat("\nrank ", lane.rank, " ", lane.lane, ": ", lane.status.to_string());
  }
  return text;
}

SpreadJob::SpreadJob(const SpreadBackend& backend, Topology topology,
                     std::optional<OwnProcess> own_process)
    : backend_(backend),
      over_hosts_(backend.spreads_over_hosts && all_owners_are_recipients(topology)),
      hosts_(hosts_of(topology)),
      topology_([&] {
        topology.options.sharing = backend.sharing;
        if (!backend.in_host_memory) {
          topology.options.receive_into_rings = false;
          const bool crosses = std::ranges::any_of(topology.ranks, [&](const PlanRank& rank) {
            return rank.host != topology.ranks[0].host;
          });
          // What comes from other hosts has nowhere else to go.
          if (crosses && topology.options.staging_chunks == 0) topology.options.staging_chunks = 2;
        }
        if (over_hosts_) {
          for (PlanRank& rank : topology.ranks) rank.host = 0;
        }
        return std::move(topology);
      }()),
      own_process_(std::move(own_process)),
      plan_(must(topology_.plan())),
      owners_(topology_.ranks.size()) {
  if (own_process_) passes_ = own_process_->passes_before;
  make_contents();
  for (int rank = 0; rank < static_cast<int>(owners_.size()); ++rank) {
    schedules_.push_back(make_schedule(plan_, topology_.ranks, rank));
    if (topology_.ranks[static_cast<std::size_t>(rank)].recipient) recipients_.push_back(rank);
    if (!is_here(rank)) continue;
    make_pool(rank);
    join_network(rank);
  }
}

SpreadJob::~SpreadJob() {
  for (Owner& owner : owners_) owner.regions.clear();
}

void SpreadJob::make_contents() {
  std::mt19937_64 random(plan_.fingerprint());
  for (const CatalogTensor& tensor : topology_.catalog.tensors()) {
    std::vector<std::byte>& bytes = contents_.emplace_back(tensor.info->bytes);
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
    }
  }
}

void SpreadJob::make_pool(int rank) {
  Owner& owner = this->owner(rank);
  owner.device = backend_.make_device(rank);
  const Catalog& catalog = topology_.catalog;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> held;  // offset, tensor
  std::uint64_t bytes = 0;
  for (std::uint32_t t = 0; t < catalog.tensors().size(); ++t) {
    for (const Replica& replica : catalog.replicas(catalog.tensors()[t])) {
      if (replica.rank != rank) continue;
      held.emplace_back(replica.offset, t);
      bytes = std::max(bytes, replica.offset + contents_[t].size());
    }
  }
  HostPoolOptions options;
  options.huge_pages = false;
  owner.pool = must(HostPool::create(bytes, options));
  for (const auto& [offset, tensor] : held) {
    const std::vector<std::byte>& content = contents_[tensor];
    if (!content.empty()) std::memcpy(owner.pool->pointer(offset), content.data(), content.size());
  }
}

void SpreadJob::join_network(int rank) {
  if (!backend_.make_transport) return;
  Owner& owner = this->owner(rank);
  owner.transport = backend_.make_transport(network_, rank);
  owner.signals = std::make_unique<ProgressSignals>(*owner.transport);
  // In two regions with an awkward border, so that some chunks lie in both.
  for (const PoolRun& segment : owner.pool->segments()) {
    const std::uint64_t cut = std::min(segment.bytes, segment.bytes / 3 | 1);
    for (const auto& [begin, end] : {std::pair(std::uint64_t{0}, cut), {cut, segment.bytes}}) {
      if (begin == end) continue;
      owner.regions.push_back(
          must(owner.transport->register_memory(segment.data + begin, end - begin)));
      owner.pieces.push_back({segment.offset + begin, end - begin, owner.regions.back()->id()});
    }
  }
  owner.descriptor = must(owner.transport->descriptor());
}

void SpreadJob::kill(int rank) { backend_.kill(network_, transport(rank)); }

void SpreadJob::restart(int rank) {
  Owner& owner = this->owner(rank);
  owner.regions.clear();
  owner.pieces.clear();
  owner.signals.reset();
  owner.transport.reset();
  join_network(rank);
}

std::uint64_t SpreadJob::bytes_to_receive(int rank) const {
  std::uint64_t bytes = 0;
  for (const IncomingChunk& incoming : schedule(rank).receive) {
    for (const SourceRange& range : chunk_ranges(plan_, incoming.chunk)) bytes += range.bytes;
  }
  return bytes;
}

std::vector<int> SpreadJob::recipients_here() const {
  std::vector<int> here;
  std::copy_if(recipients_.begin(), recipients_.end(), std::back_inserter(here),
               [this](int rank) { return is_here(rank); });
  return here;
}

std::string SpreadJob::Published::encode() const {
  std::string text = concat(board, ' ', to_hex(key), ' ', testing::encode(staging), ' ',
                            to_hex(pool), ' ', to_hex(ring), ' ', ring_region, ' ', ring_bytes);
  for (const RemoteMemory::Piece& piece : pool_pieces)
    text += concat(' ', piece.offset, ' ', piece.bytes, ' ', piece.region);
  return text;
}

SpreadJob::Published SpreadJob::Published::decode(const std::string& text) {
  const std::vector<std::string> words = split(text, ' ');
  const auto number = [&](std::size_t i) { return std::uint64_t{std::stoull(words.at(i))}; };
  constexpr std::size_t kHandleWords = 5, kPool = 2 + kHandleWords;
  Published decoded{words.at(0),
                    from_hex(words.at(1)),
                    decode_handle(std::span(words).subspan(2, kHandleWords)),
                    from_hex(words.at(kPool)),
                    from_hex(words.at(kPool + 1)),
                    {},
                    number(kPool + 2),
                    number(kPool + 3)};
  for (std::size_t i = kPool + 4; i + 2 < words.size(); i += 3)
    decoded.pool_pieces.push_back({number(i), number(i + 1), number(i + 2)});
  return decoded;
}

Status SpreadJob::publish(Pass& pass) {
  for (int rank = 0; rank < static_cast<int>(owners_.size()); ++rank) {
    if (!is_here(rank)) continue;
    Published& mine = pass.published[rank];
    if (backend_.make_key && rank == recipients_.front()) {
      CKPT_ASSIGN_OR_RETURN(mine.key, backend_.make_key());
    }
    if (const auto memory = pass.memories.find(rank); memory != pass.memories.end()) {
      const auto& [ring, own_ring, fill, receive] = memory->second;
      mine.staging = (fill ? *fill : *ring).handle();
    }
    mine.pool = owner(rank).descriptor;
    mine.pool_pieces = owner(rank).pieces;
    const auto region = pass.regions.find(rank);
    if (region == pass.regions.end()) continue;
    CKPT_ASSIGN_OR_RETURN(mine.ring, owner(rank).transport->descriptor());
    mine.ring_region = region->second->id();
    mine.ring_bytes = region->second->bytes();
  }
  if (!own_process_) return Status();
  const std::string mine = pass.published.at(own_process_->rank).encode();
  for (const auto& [rank, text] : own_process_->meet(mine))
    pass.published[rank] = Published::decode(text);
  return Status();
}

void SpreadJob::meet_others() {
  if (own_process_) own_process_->meet("");
}

// With ranks elsewhere, the first of a host makes the board for all of it.
Status SpreadJob::make_boards(Pass& pass) {
  std::map<int, std::vector<int>> locals;
  for (const int rank : recipients_here()) locals[host_of(rank)];
  for (const int rank : recipients_) {
    const auto local = locals.find(host_of(rank));
    if (local != locals.end()) local->second.push_back(rank);
  }
  for (const auto& [host, local] : locals) {
    HostBoard board{HostProgressLayout(local, links_of(schedule(local.front())),
                                       over_hosts_ ? recipients_ : std::vector<int>()),
                    std::nullopt};
    if (!own_process_ || local.size() == 1) {
      CKPT_ASSIGN_OR_RETURN(board.progress, Progress::create_private(board.layout.slots()));
    } else if (is_here(local.front())) {
      std::string& name = pass.published[local.front()].board;
      name = concat("ckpt-spread-test-", random_id());
      CKPT_ASSIGN_OR_RETURN(board.progress, Progress::create_shared(name, board.layout.slots()));
    }
    pass.boards.emplace(host, std::move(board));
  }
  return Status();
}

Status SpreadJob::open_board(Pass& pass) {
  for (auto& [host, board] : pass.boards) {
    if (board.progress) continue;
    const std::string& name = pass.published.at(board.layout.local_ranks().front()).board;
    CKPT_ASSIGN_OR_RETURN(board.progress, Progress::open_shared(name, board.layout.slots()));
  }
  return Status();
}

Status SpreadJob::open_stagings(Pass& pass) {
  for (const int here : recipients_here()) {
    for (const auto& [rank, kind] : pulled_streams(schedule(here))) {
      if (is_here(rank) || pass.opened.contains(rank)) continue;
      CKPT_ASSIGN_OR_RETURN(pass.opened[rank],
                            owner(here).device->open(pass.published.at(rank).staging));
    }
  }
  return Status();
}

Status SpreadJob::prepare(Pass& pass) {
  const std::vector<int> here = recipients_here();
  CKPT_RETURN_IF_ERROR(make_boards(pass));
  for (const int rank : here) CKPT_RETURN_IF_ERROR(allocate(pass, rank));
  CKPT_RETURN_IF_ERROR(publish(pass));
  CKPT_RETURN_IF_ERROR(open_board(pass));
  CKPT_RETURN_IF_ERROR(open_stagings(pass));
  for (const int rank : here) {
    auto& made = pass.ranks[rank];
    made = make_rank(pass, rank);
    if (made->transport != nullptr) CKPT_RETURN_IF_ERROR(connect(pass, *made));
    CKPT_ASSIGN_OR_RETURN(pass.spreads[rank], backend_.make_spreads(*made));
    pass.aborts[rank];
  }
  meet_others();  // everybody hears signals before anybody's first chunk is done
  if (!own_process_) return Status();
  // Everybody has opened everything: who is killed from now on leaves no name behind.
  for (GuardedBuffer* buffer : pass.buffers()) buffer->close_to_others();
  for (auto& [host, board] : pass.boards) board.progress->close_to_others();
  return Status();
}

Status SpreadJob::allocate(Pass& pass, int rank) {
  const Owner& owner = this->owner(rank);
  const PlanOptions& sizes = plan_.options;
  const auto buffer_of = [&](std::uint64_t bytes, Device* device = nullptr) {
    return bytes == 0 ? nullptr
                      : std::make_unique<GuardedBuffer>(device ? *device : *owner.device, bytes);
  };
  Pass::Memory& memory = pass.memories[rank];
  auto& ring = per_rank() ? memory.own_ring : pass.shared_rings[host_of(rank)];
  if (!ring) ring = buffer_of(sizes.ring_bytes);
  memory.ring = ring.get();
  memory.fill_staging = buffer_of(schedule(rank).fill_slots * sizes.chunk_bytes);
  // Whatever the device, the transport reaches it.
  memory.receive_staging =
      buffer_of(schedule(rank).receive_slots * sizes.cross_chunk_bytes, host_.get());
  if (!owner.transport || (!memory.receive_staging && !backend_.in_host_memory)) return Status();
  const GuardedBuffer& read = memory.receive_staging ? *memory.receive_staging : *memory.ring;
  CKPT_ASSIGN_OR_RETURN(pass.regions[rank],
                        owner.transport->register_memory(read.data(), read.bytes()));
  return Status();
}

std::unique_ptr<RankPass> SpreadJob::make_rank(Pass& pass, int rank) {
  const PlanOptions& sizes = plan_.options;
  const Owner& owner = this->owner(rank);
  const Schedule& own = schedule(rank);
  const Pass::Memory& memory = pass.memories[rank];
  HostBoard& board = pass.boards.at(host_of(rank));
  const std::vector<int>& local = board.layout.local_ranks();
  RingReaders readers{per_rank() ? std::vector<int>{rank} : local, {}};
  if (!own.pull.empty() && sizes.staging_chunks == 0) readers.pullers = local;
  ReceiveTarget received;
  if (memory.receive_staging) {
    received = {nullptr, memory.receive_staging->data(), sizes.cross_chunk_bytes, own.receive_slots,
                local};
  } else {
    received.ring = memory.ring->data();
  }
  std::map<StreamKey, Staging> stagings;
  for (const StreamKey& key : pulled_streams(own)) {
    const bool from_network = key.second == StreamKind::kReceive;
    if (const auto opened = pass.opened.find(key.first); opened != pass.opened.end()) {
      const std::byte* data = opened->second->data() + GuardedBuffer::kOffset;
      const std::uint64_t slots = schedule(key.first).fill_slots;
      stagings[key] = Staging{data, slots > 0 ? sizes.chunk_bytes : 0, slots};
      continue;
    }
    const Pass::Memory& source = pass.memories[key.first];
    const auto& staging = from_network ? source.receive_staging : source.fill_staging;
    const std::uint64_t slot = from_network ? sizes.cross_chunk_bytes : sizes.chunk_bytes;
    stagings[key] = staging ? Staging{staging->data(), slot, staging->bytes() / slot}
                            : Staging{source.ring->data(), 0, 0};
  }
  return std::unique_ptr<RankPass>(new RankPass{
      .rank = rank,
      .epoch = 7,
      .pass = passes_,
      .device = *owner.device,
      .plan = plan_,
      .schedule = own,
      .progress = *board.progress,
      .layout = board.layout,
      .space = RingCredits(plan_, own, board.layout, *board.progress, std::move(readers)),
      .pulled = PullProgress(own, *board.progress, board.layout, rank),
      .ring = memory.ring->data(),
      .fill_staging = memory.fill_staging ? memory.fill_staging->data() : nullptr,
      .received = std::move(received),
      .stagings = std::move(stagings),
      .transport = owner.transport.get(),
      .signals = owner.signals.get(),
      .pools = {},
      .rings = {},
      .listeners = {},
      .key = pass.published.at(recipients_.front()).key});
}

Status SpreadJob::connect(Pass& pass, RankPass& rank) {
  if (over_hosts_) {
    std::map<int, std::vector<int>> hosts;
    for (const int recipient : recipients_) hosts[host_of(recipient)].push_back(recipient);
    std::vector<std::vector<int>> ranks;
    for (const auto& [host, of_host] : hosts) ranks.push_back(of_host);
    for (const int listener : credit_listeners(ranks, rank.rank)) {
      rank.listeners[listener] = pass.published[listener].pool;
    }
  }
  std::set<int> pools, rings;
  for (const IncomingChunk& incoming : rank.schedule.receive) {
    (incoming.from_pool ? pools : rings).insert(incoming.source);
    if (incoming.next_stop >= 0) rings.insert(incoming.next_stop);
  }
  const auto open = [&](int other, const std::vector<std::byte>& descriptor) -> Result<Peer*> {
    ConnectOptions options;
    options.label = concat("rank ", other);
    CKPT_ASSIGN_OR_RETURN(
        auto peer, rank.transport->connect(descriptor, options, Deadline::after_seconds(30)));
    return pass.peers[rank.rank].emplace_back(std::move(peer)).get();
  };
  for (const int other : pools) {
    const Published& published = pass.published[other];
    RemoteMemory& memory = rank.pools[other];
    CKPT_ASSIGN_OR_RETURN(memory.peer, open(other, published.pool));
    memory.pieces = published.pool_pieces;
  }
  for (const int other : rings) {
    RemoteMemory& memory = rank.rings[other];
    const Published& published = pass.published[other];
    CKPT_ASSIGN_OR_RETURN(memory.peer, open(other, published.ring));
    memory.pieces = {{0, published.ring_bytes, published.ring_region}};
    memory.slot_bytes = plan_.options.cross_chunk_bytes;
    memory.slots = schedule(other).receive_slots;
  }
  return Status();
}

PassOutcome SpreadJob::run(const PassOptions& options) {
  ++passes_;
  PassOutcome outcome;
  Pass pass;
  outcome.cause = prepare(pass);
  if (!outcome.cause.is_ok()) return outcome;
  run_lanes(pass, options, outcome);
  pass.spreads.clear();
  pass.opened.clear();
  meet_others();  // nobody reads here any more
  outcome.stray_write = pass.watch(options.watch);
  return outcome;
}

void SpreadJob::abort(const Status& cause) { abort_(cause); }

void SpreadJob::run_lanes(Pass& pass, const PassOptions& options, PassOutcome& outcome) {
  const Deadline deadline = Deadline::after_seconds(options.seconds);
  std::mutex mutex;  // guards outcome
  abort_ = [&](const Status& cause) {
    {
      const std::lock_guard lock(mutex);
      if (!outcome.cause.is_ok()) return;
      outcome.cause = cause;
      outcome.aborted = std::chrono::steady_clock::now();
    }
    for (auto& [rank, signal] : pass.aborts) signal.raise(cause);
  };
  if (!options.aborted_before.is_ok()) abort_(options.aborted_before);
  std::vector<std::thread> threads;
  const auto start = [&](int rank, std::string name, std::function<Status()> lane,
                         std::function<std::uint64_t()> bytes) {
    threads.emplace_back(
        [&, rank, name = std::move(name), lane = std::move(lane), bytes = std::move(bytes)] {
          const Status status = lane();
          const auto ended = std::chrono::steady_clock::now();
          if (!status.is_ok() && options.tell_everybody) abort_(status.on_rank(rank));
          const std::lock_guard lock(mutex);
          if (!status.is_ok() && outcome.cause.is_ok()) outcome.cause = status.on_rank(rank);
          outcome.lanes.push_back({rank, name, status, bytes(), ended});
        });
  };
  for (const auto& [rank, of_rank] : pass.ranks) {
    AbortSignal& signal = pass.aborts[rank];
    const auto none = [] { return std::uint64_t{0}; };
    start(
        rank, "fill",
        [&, &r = *of_rank] {
          return run_fill(r, *owner(r.rank).pool, options.fills, deadline, signal);
        },
        none);
    start(
        rank, "read",
        [&, &r = *of_rank] {
          return run_reader(r, topology_.catalog, contents_, options.acknowledges, deadline,
                            signal);
        },
        none);
    for (const auto& spread : pass.spreads[rank]) {
      start(
          rank, std::string(spread->name()),
          [&, s = spread.get()] { return s->run(deadline, signal); },
          [s = spread.get()] { return s->bytes(); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  abort_ = nullptr;
}

}  // namespace ckpt::testing
