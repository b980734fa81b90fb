#include "transport/testing/fake_network.h"

#include <cstring>
#include <utility>

#include "base/strings.h"

namespace ckpt::testing {

std::shared_ptr<CallbackTransport> FakeNetwork::make_transport(std::string label) {
  auto node = std::make_shared<Node>();
  TransportCallbacks functions = callbacks(node, label);
  {
    const std::lock_guard lock(mutex_);
    functions.address = concat("node ", nodes_.size());
    nodes_.emplace(functions.address, node);
  }
  std::shared_ptr<CallbackTransport> transport =
      make_callback_transport(std::move(label), std::move(functions));
  const std::lock_guard lock(mutex_);
  node->instance = transport->instance();
  node->transport = transport;
  return transport;
}

TransportCallbacks FakeNetwork::callbacks(const std::shared_ptr<Node>& node,
                                          const std::string& label) {
  TransportCallbacks out;
  out.register_memory = [this, node](std::uint64_t region, void* data, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    node->regions[region] = {static_cast<std::byte*>(data), bytes, 0};
    return Status::ok();
  };
  out.deregister_memory = [this, node](std::uint64_t region, void*, Deadline) {
    std::unique_lock lock(mutex_);
    auto handle = node->regions.extract(region);  // new reads find nothing
    const auto unread = [&] { return handle.empty() || handle.mapped().readers == 0; };
    if (!unread()) {
      node->regions.insert(std::move(handle));
      changed_.wait(lock, [&] { return node->regions[region].readers == 0; });
      node->regions.erase(region);
    }
  };
  out.read = [this](const Remote& remote, std::span<const Piece> pieces, Deadline deadline,
                    AbortSignal& abort) { return read(remote, pieces, deadline, abort); };
  out.signal = [this, node, label](const Remote& remote, std::span<const std::byte> message) {
    return signal(*node, label, remote, message);
  };
  return out;
}

Status FakeNetwork::wait_until_willing(std::unique_lock<std::mutex>& lock, Node& node,
                                       const Remote& remote, Deadline deadline,
                                       AbortSignal& abort) {
  const Deadline until =
      node.delay.count() > 0 ? deadline.earlier(Deadline::after(node.delay)) : deadline;
  const bool delayed = node.delay.count() > 0;
  changed_.wait_until(lock, until.when(), [&] {
    return (abort.raised() && !node.stubborn) || node.dead || (!node.stopped && !delayed);
  });
  if (node.dead) return peer_lost(concat("lost ", remote.label, ": it died"));
  if (abort.raised() && !node.stubborn) return abort.cause();
  if (node.stopped || deadline.expired()) {
    return deadline_exceeded(concat("read from ", remote.label, " was not done in time"));
  }
  if (node.instance != remote.instance) {
    return failed_precondition(concat(remote.label, " was restarted since the metas were made"));
  }
  return Status::ok();
}

Status FakeNetwork::copy(std::unique_lock<std::mutex>& lock, Node& node, const Remote& remote,
                         const Piece& piece) {
  const auto found = node.regions.find(piece.region);
  if (found == node.regions.end()) {
    return not_found(
        concat("memory region ", piece.region, " of ", remote.label, " is no longer registered"));
  }
  Region& region = found->second;
  const auto start = reinterpret_cast<std::uintptr_t>(region.data);
  const std::uint64_t offset = piece.remote_address - start;
  if (offset > region.bytes || piece.bytes > region.bytes - offset) {
    return invalid_argument(concat("foreign memory of ", remote.label));
  }
  ++region.readers;
  lock.unlock();
  std::memcpy(piece.destination, region.data + offset, piece.bytes);
  lock.lock();
  --region.readers;
  changed_.notify_all();
  if (std::exchange(node.corrupt, false)) {
    *static_cast<std::byte*>(piece.destination) ^= std::byte{1};
  }
  return Status::ok();
}

Status FakeNetwork::read(const Remote& remote, std::span<const Piece> pieces, Deadline deadline,
                         AbortSignal& abort) {
  const int key = abort.subscribe([this](const Status&) {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
  Status status;
  {
    std::unique_lock lock(mutex_);
    const auto found = nodes_.find(remote.address);
    if (found == nodes_.end()) {
      status = peer_lost(concat("no such node: ", remote.address));
    } else {
      const std::shared_ptr<Node> node = found->second;
      status = wait_until_willing(lock, *node, remote, deadline, abort);
      for (std::size_t i = 0; i < pieces.size() && status.is_ok(); ++i) {
        status = node->dead ? peer_lost(concat("lost ", remote.label, ": it died"))
                            : copy(lock, *node, remote, pieces[i]);
      }
    }
  }
  abort.unsubscribe(key);
  return status;
}

Status FakeNetwork::signal(const Node& from, const std::string& from_label, const Remote& remote,
                           std::span<const std::byte> message) {
  std::shared_ptr<CallbackTransport> target;
  std::string instance;
  {
    std::unique_lock lock(mutex_);
    const auto found = nodes_.find(remote.address);
    if (found == nodes_.end() || found->second->dead ||
        found->second->instance != remote.instance) {
      return peer_lost("it died");
    }
    Node& node = *found->second;
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return !node.stopped; });
    if (node.signals_to_drop > 0) {
      --node.signals_to_drop;
      return Status::ok();
    }
    target = node.transport.lock();
    instance = from.instance;
  }
  if (target) target->deliver_signal(from_label, instance, message);
  return Status::ok();
}

FakeNetwork::Node& FakeNetwork::node_of(const Transport& transport) {
  for (const auto& [address, node] : nodes_) {
    if (node->instance == transport.instance()) return *node;
  }
  std::abort();  // a test names a transport of another network
}

void FakeNetwork::die(const Transport& owner) {
  const std::lock_guard lock(mutex_);
  node_of(owner).dead = true;
  changed_.notify_all();
}

void FakeNetwork::stop(const Transport& owner) {
  const std::lock_guard lock(mutex_);
  node_of(owner).stopped = true;
}

void FakeNetwork::resume(const Transport& owner) {
  const std::lock_guard lock(mutex_);
  node_of(owner).stopped = false;
  changed_.notify_all();
}

void FakeNetwork::delay(const Transport& owner, std::chrono::milliseconds by) {
  const std::lock_guard lock(mutex_);
  node_of(owner).delay = by;
}

void FakeNetwork::delay_stubbornly(const Transport& owner, std::chrono::milliseconds by) {
  const std::lock_guard lock(mutex_);
  node_of(owner).delay = by;
  node_of(owner).stubborn = true;
}

void FakeNetwork::corrupt_next_read(const Transport& owner) {
  const std::lock_guard lock(mutex_);
  node_of(owner).corrupt = true;
}

void FakeNetwork::drop_signals(const Transport& owner, int count) {
  const std::lock_guard lock(mutex_);
  node_of(owner).signals_to_drop = count;
}

}  // namespace ckpt::testing
