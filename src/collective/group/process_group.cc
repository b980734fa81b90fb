#include "collective/group/process_group.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/host.h"
#include "base/strings.h"
#include "transport/network/network_choice.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt {
namespace {

using Bytes = ControlClient::Bytes;

/// What goes through the hub instead of from rank to rank.
constexpr std::size_t kSmall = 16 << 10;

/// What a rank says of its memory in a broadcast.
struct Offer {
  std::uint64_t size = 0;
  std::uint64_t region = 0;  ///< of its transport, where it offers a descriptor
  std::span<const std::byte> content;
};

Bytes encode(const Offer& offer) {
  const std::uint64_t head[] = {offer.size, offer.region};
  Bytes out(sizeof(head) + offer.content.size());
  std::memcpy(out.data(), head, sizeof(head));
  std::ranges::copy(offer.content, out.begin() + sizeof(head));
  return out;
}

/// The offers of `ranks`, which all must have memory of `size` bytes.
Result<std::vector<Offer>> decode(const std::vector<Bytes>& gathered, const std::vector<int>& ranks,
                                  std::size_t size) {
  std::vector<Offer> offers;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    std::uint64_t head[2] = {};
    if (gathered[i].size() < sizeof(head)) {
      return protocol_error(concat("rank ", ranks[i], " sent no size for a broadcast"));
    }
    std::memcpy(head, gathered[i].data(), sizeof(head));
    offers.push_back({head[0], head[1], std::span(gathered[i]).subspan(sizeof(head))});
    if (head[0] == size) continue;
    return invalid_argument(concat("a broadcast of ", size, " bytes on this rank, and of ", head[0],
                                   " bytes on rank ", ranks[i], ": tensors must be of equal size"));
  }
  return offers;
}

Result<std::vector<int>> beginning_with(const std::vector<int>& ranks, int source) {
  std::vector<int> out = ranks;
  const auto found = std::find(out.begin(), out.end(), source);
  if (found == out.end()) {
    return invalid_argument(concat("rank ", source, " is to broadcast and is not of the group"));
  }
  std::rotate(out.begin(), found, out.end());
  return out;
}

}  // namespace

Result<std::unique_ptr<ProcessGroup>> ProcessGroup::join(const JoinOptions& options,
                                                         Deadline deadline) {
  CKPT_ASSIGN_OR_RETURN(auto control, ControlClient::join(options, deadline.remaining()));
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(std::move(control), options.hub.host));
}

ProcessGroup::ProcessGroup(std::unique_ptr<ControlClient> control, std::string hub_host)
    : control_(std::move(control)), hub_host_(std::move(hub_host)) {}

ProcessGroup::~ProcessGroup() = default;

Status ProcessGroup::barrier(std::string_view tag, const std::vector<int>& ranks, Deadline deadline,
                             AbortSignal& abort) {
  return control_->barrier(concat(tag, " barrier"), ranks, deadline, &abort);
}

Result<std::vector<Bytes>> ProcessGroup::all_gather(std::string_view tag,
                                                    const std::vector<int>& ranks,
                                                    std::span<const std::byte> mine,
                                                    Deadline deadline, AbortSignal& abort) {
  return control_->all_gather(concat(tag, " gather"), ranks, mine, deadline, &abort);
}

Status ProcessGroup::broadcast(std::string_view tag, const std::vector<int>& ranks, int source,
                               std::span<std::byte> memory, Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(const std::vector<int> from_source, beginning_with(ranks, source));
  const std::string name = concat(tag, " broadcast of rank ", source);
  if (memory.size() > kSmall) return broadcast_large(name, from_source, memory, deadline, abort);
  Offer mine{memory.size(), 0, {}};
  if (rank() == source) mine.content = memory;
  CKPT_ASSIGN_OR_RETURN(const std::vector<Bytes> gathered,
                        control_->all_gather(name, from_source, encode(mine), deadline, &abort));
  CKPT_ASSIGN_OR_RETURN(const auto offers, decode(gathered, from_source, memory.size()));
  const auto content = offers.front().content;
  if (content.size() != memory.size()) {
    return protocol_error(
        concat("rank ", source, " sent ", content.size(), " of ", memory.size(), " bytes"));
  }
  if (rank() != source) std::ranges::copy(content, memory.begin());
  return Status::ok();
}

// In each round every rank that has the bytes offers them to one that has not.
Status ProcessGroup::broadcast_large(std::string_view tag, const std::vector<int>& from_source,
                                     std::span<std::byte> memory, Deadline deadline,
                                     AbortSignal& abort) {
  const std::size_t count = from_source.size();
  const auto me = static_cast<std::size_t>(
      std::find(from_source.begin(), from_source.end(), rank()) - from_source.begin());
  std::unique_ptr<MemoryRegion> region;
  Bytes descriptor;
  Status mine;
  for (std::size_t have = 1; have < count; have *= 2) {
    if (me < have && me + have < count && !region) {
      const auto make_offer = [&]() -> Result<Bytes> {
        CKPT_ASSIGN_OR_RETURN(Transport * transport, this->transport());
        CKPT_ASSIGN_OR_RETURN(region, transport->register_memory(memory.data(), memory.size()));
        return transport->descriptor();
      };
      auto made = make_offer();
      // Without an offer the reader has nothing to do, and hears of this in the vote.
      if (made) descriptor = std::move(*made);
      mine = made.status();
    }
    const Offer offer{memory.size(), region ? region->id() : 0, descriptor};
    CKPT_ASSIGN_OR_RETURN(const std::vector<Bytes> gathered,
                          control_->all_gather(tag, from_source, encode(offer), deadline, &abort));
    CKPT_ASSIGN_OR_RETURN(const auto offers, decode(gathered, from_source, memory.size()));
    if (me >= have && me < 2 * have && !offers[me - have].content.empty()) {
      const Offer& theirs = offers[me - have];
      mine = read(theirs.content, theirs.region, from_source[me - have], memory, deadline, abort);
    }
    CKPT_RETURN_IF_ERROR(control_->vote(tag, from_source, mine, deadline, &abort));
  }
  return Status::ok();
}

Status ProcessGroup::read(std::span<const std::byte> descriptor, std::uint64_t region, int owner,
                          std::span<std::byte> memory, Deadline deadline, AbortSignal& abort) {
  CKPT_ASSIGN_OR_RETURN(Transport * transport, this->transport());
  CKPT_ASSIGN_OR_RETURN(
      const auto peer, transport->connect(descriptor, {.label = concat("rank ", owner)}, deadline));
  const ReadRange range{region, 0, memory.data(), memory.size()};
  return transport->read(*peer, std::span(&range, 1), deadline)->wait(deadline, &abort);
}

Result<Transport*> ProcessGroup::transport() {
  const std::lock_guard lock(mutex_);
  if (!transport_) {
    NetworkRequest request;
    request.master_host = hub_host_;
    CKPT_ASSIGN_OR_RETURN(const NetworkChoice choice, choose_network(request));
    UcxOptions options;
    options.label = concat("rank ", rank(), " on ", host_name());
    options.net_devices = choice.limit;
    CKPT_ASSIGN_OR_RETURN(transport_, make_ucx_transport(options));
  }
  return transport_.get();
}

}  // namespace ckpt
