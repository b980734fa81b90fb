#include "transport/ucx/reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "transport/seal.h"

namespace ckpt::ucx {
namespace {

/// How long the owner may take to answer a Bye.
constexpr std::chrono::seconds kByePatience{1};

Status read_deadline_passed(const ReadState& read) {
  return deadline_exceeded(concat("read of ", format_bytes(read.bytes), " from ", read.peer->label,
                                  " was not done in time (", format_bytes(read.bytes_done()),
                                  " had arrived): it may be stopped, or the link too slow"));
}

}  // namespace

bool Reader::connect(const std::shared_ptr<PeerState>& peer) {
  if (!peer->status().is_ok()) return false;
  if (peer->endpoint) return true;
  // UCX pairs the endpoints of two workers by counting them on both sides. A connection that failed
  // half-way, or an owner that was restarted, puts the counts out of step; with a worker to itself
  // every connection is the first.
  auto worker = progress_.add_worker();
  if (!worker.is_ok()) {
    lose(peer, worker.status().with_context(concat("cannot reach ", peer->label)));
    return false;
  }
  const std::vector<std::byte> address = (*worker)->address();
  const std::weak_ptr<PeerState> weak = peer;
  auto endpoint =
      Endpoint::connect(progress_, std::move(worker).value(), peer->descriptor.address,
                        [this, weak](const std::string& why) {
                          const auto broken = weak.lock();
                          if (!broken) return;
                          lose(broken, peer_lost(concat("lost ", broken->label, ": ", why)));
                        });
  if (!endpoint.is_ok()) {
    lose(peer, peer_lost(concat("cannot reach ", peer->label, ": ", endpoint.status().message())));
    return false;
  }
  peer->endpoint = std::move(endpoint).value();
  peer->endpoint->send(
      {peer->connection, peer->next_sequence++,
       Hello{kMessageVersion, identity_.instance, identity_.label, address,
             peer->descriptor.instance, seal_of(address, peer->descriptor.instance)}});
  return true;
}

void Reader::start(std::shared_ptr<ReadState> read) {
  PeerState& peer = *read->peer;
  if (!connect(read->peer)) read->finish(peer.status());
  if (read->deadline.expired()) read->finish(read_deadline_passed(*read));
  read->id = next_read_++;
  reads_.emplace(read->id, read);
  if (read->done()) {
    retire(read);
    return;
  }
  read->timer = progress_.call_at(read->deadline, [this, read] {
    read->timer.reset();
    read->finish(read_deadline_passed(*read));
    retire(read);
  });
  peer.queue.push_back(std::move(read));
  pump(peer);
}

void Reader::retire(const std::shared_ptr<ReadState>& read) {
  if (read->timer) progress_.cancel(*read->timer);
  read->timer.reset();
  std::erase(read->peer->queue, read);
  const Status outcome = read->outcome();
  if (!std::exchange(read->retired, true)) {
    (outcome.is_ok() ? counters_.reads_done : counters_.reads_failed).fetch_add(1);
  }
  if (read->callback) {
    Transport::ReadCallback callback;
    callback.swap(read->callback);
    callback(outcome);
  }
  forget_if_idle(read);
  pump(*read->peer);
}

void Reader::forget_if_idle(const std::shared_ptr<ReadState>& read) {
  if (read->done() && read->waiting.empty()) reads_.erase(read->id);
}

void Reader::pump(PeerState& peer) {
  if (!peer.endpoint || !peer.status().is_ok()) return;
  while (!peer.queue.empty()) {
    ReadState& read = *peer.queue.front();
    if (read.done()) {  // cancelled, and not retired yet
      peer.queue.pop_front();
      continue;
    }
    const std::uint64_t bytes = read.requests[read.next_request].bytes;
    if (peer.window > 0 && peer.window + bytes > kReadWindow) return;
    send_next_request(peer, read);
    if (read.next_request == read.requests.size()) peer.queue.pop_front();
  }
}

void Reader::send_next_request(PeerState& peer, ReadState& read) {
  const std::uint32_t index = read.next_request++;
  const ReadRequest& plan = read.requests[index];
  Request request{read.id, index, {}};
  request.spans.reserve(plan.pieces.size());
  for (const ReadRange& piece : plan.pieces) {
    request.spans.push_back({piece.region, piece.offset, piece.bytes});
  }
  read.waiting.emplace(index, ReadState::Waiting{});
  peer.window += plan.bytes;
  peer.endpoint->send({peer.connection, peer.next_sequence++, std::move(request)});
}

void Reader::on_data(Arrival& arrival) {
  const auto found = reads_.find(arrival.header().read);
  if (found == reads_.end()) return;
  const std::shared_ptr<ReadState> read = found->second;
  const std::uint32_t request = arrival.header().request;
  const auto waiting = read->waiting.find(request);
  if (read->peer->connection != arrival.header().connection || waiting == read->waiting.end() ||
      waiting->second.receiving || waiting->second.data) {
    return;
  }
  if (!read->begin_receive()) {
    progress_.defer([this, read, request] { settle(read, request); });
    return;
  }
  waiting->second.receiving = true;
  receive(read, request, arrival);
}

void Reader::receive(const std::shared_ptr<ReadState>& read, std::uint32_t request,
                     Arrival& arrival) {
  const ReadRequest& plan = read->requests[request];
  const bool snapshot = arrival.header().snapshot != 0;
  const auto done = [this, read, request, snapshot](const Status& status) {
    progress_.defer(
        [this, read, request, snapshot, status] { received(read, request, snapshot, status); });
  };
  if (arrival.bytes() != plan.bytes || (!arrival.is_here() && plan.pieces.size() != 1)) {
    done(protocol_error(concat("it sent ", arrival.bytes(), " bytes instead of ", plan.bytes)));
    return;
  }
  if (!arrival.is_here()) {
    void* const destination = plan.pieces[0].destination;
    arrival.receive(destination, destinations_.at(destination) != nullptr, done);
    return;
  }
  const std::byte* from = arrival.here().data();
  Status status;
  for (const ReadRange& piece : plan.pieces) {
    if (const auto device = destinations_.at(piece.destination)) {
      status = device->write(piece.destination, from, piece.bytes);
      if (!status.is_ok()) {
        read->finish(status.with_context(concat("what was read from ", read->peer->label)));
        break;
      }
    } else {
      std::memcpy(piece.destination, from, piece.bytes);
    }
    from += piece.bytes;
  }
  done(status);
}

void Reader::received(const std::shared_ptr<ReadState>& read, std::uint32_t request, bool snapshot,
                      const Status& status) {
  const std::uint64_t arrived = status.is_ok() ? read->requests[request].bytes : 0;
  counters_.bytes_read.fetch_add(arrived);
  read->end_receive(arrived);
  const auto found = read->waiting.find(request);
  if (found == read->waiting.end()) return;
  found->second.receiving = false;
  if (!status.is_ok()) {
    // UCX may tell of the request before it tells of the connection; the peer's word is better.
    const Status peer = read->peer->status();
    read->finish(peer.is_ok()
                     ? peer_lost(concat("read from ", read->peer->label, ": ", status.message()))
                     : peer);
    settle(read, request);
    return;
  }
  found->second.data = true;
  if (snapshot) found->second.served = true;
  settle_if_complete(read, request);
}

void Reader::settle_if_complete(const std::shared_ptr<ReadState>& read, std::uint32_t request) {
  const auto found = read->waiting.find(request);
  if (found == read->waiting.end() || found->second.receiving) return;
  if (read->done() || (found->second.data && found->second.served)) settle(read, request);
}

void Reader::settle(const std::shared_ptr<ReadState>& read, std::uint32_t request) {
  if (read->waiting.erase(request) == 0) return;
  read->peer->window -= read->requests[request].bytes;
  if (read->waiting.empty() && read->next_request == read->requests.size()) {
    read->finish(Status::ok());
  }
  if (read->done()) {
    retire(read);
  } else {
    pump(*read->peer);
  }
}

void Reader::on_message(const Message& message) {
  const auto peer = peers_.find(message.connection);
  if (peer == peers_.end()) return;
  if (const auto* refusal = std::get_if<Refusal>(&message.body)) {
    on_refusal(std::shared_ptr<PeerState>(peer->second), *refusal);
  } else if (const auto* served = std::get_if<Served>(&message.body)) {
    const auto read = reads_.find(served->read);
    if (read == reads_.end() || read->second->peer != peer->second) return;
    const std::shared_ptr<ReadState> keep = read->second;
    const auto waiting = keep->waiting.find(served->request);
    if (waiting == keep->waiting.end()) return;
    waiting->second.served = true;
    settle_if_complete(keep, served->request);
  }
}

void Reader::on_refusal(const std::shared_ptr<PeerState>& peer, const Refusal& refusal) {
  const Status why(refusal.code == StatusCode::kOk ? StatusCode::kProtocol : refusal.code,
                   concat(peer->label, " refuses: ", refusal.text));
  if (refusal.read == 0) {
    lose(peer, why);
    return;
  }
  const auto found = reads_.find(refusal.read);
  if (found == reads_.end() || found->second->peer != peer) return;
  const std::shared_ptr<ReadState> read = found->second;
  read->finish(why);
  // What was asked for before may still arrive; it is dropped then.
  for (auto it = read->waiting.begin(); it != read->waiting.end();) {
    if (it->second.receiving) {
      ++it;
      continue;
    }
    peer->window -= read->requests[it->first].bytes;
    it = read->waiting.erase(it);
  }
  retire(read);
}

void Reader::signal(const std::shared_ptr<PeerState>& peer, std::vector<std::byte> message) {
  const std::uint64_t bytes = message.size();
  if (!connect(peer)) {
    peer->queued_signal_bytes.fetch_sub(bytes);
    return;
  }
  counters_.signals_sent.fetch_add(1);
  peer->endpoint->send({peer->connection, peer->next_sequence++, Signal{std::move(message)}},
                       [peer, bytes](bool) { peer->queued_signal_bytes.fetch_sub(bytes); });
}

bool Reader::make_unusable(PeerState& peer, const Status& why) {
  const std::lock_guard lock(peer.mutex);
  if (!peer.why_unusable.is_ok()) return false;
  peer.why_unusable = why;
  return true;
}

void Reader::fail_reads(const PeerState& peer, const Status& why) {
  std::vector<std::shared_ptr<ReadState>> failed;
  for (const auto& [id, read] : reads_) {
    if (read->peer.get() == &peer) failed.push_back(read);
  }
  for (const auto& read : failed) {
    read->finish(why);
    std::erase_if(read->waiting, [](const auto& entry) { return !entry.second.receiving; });
    retire(read);
  }
}

void Reader::lose(const std::shared_ptr<PeerState>& peer, const Status& why) {
  const bool first = make_unusable(*peer, why);
  // Cut first: nothing is written to a destination after that but what is in flight.
  cut(peer);
  if (!first) return;
  fail_reads(*peer, why);
  if (peer->on_lost) peer->on_lost(why);
}

void Reader::close(const std::shared_ptr<PeerState>& peer) {
  const Status why = aborted(concat("the connection to ", peer->label, " was closed"));
  if (!make_unusable(*peer, why)) return;
  fail_reads(*peer, why);
  const bool in_flight = std::any_of(reads_.begin(), reads_.end(),
                                     [&](const auto& entry) { return entry.second->peer == peer; });
  if (!peer->endpoint || in_flight) {
    cut(peer);
    return;
  }
  // Signals that were sent still arrive: the owner answers behind the last of them.
  peer->endpoint->send({peer->connection, peer->next_sequence++, Bye{}});
  progress_.call_at(Deadline::after(kByePatience), [this, peer] { cut(peer); });
}

void Reader::cut(const std::shared_ptr<PeerState>& peer) {
  if (peer->endpoint) peer->endpoint->close();
  peers_.erase(peer->connection);
}

void Reader::close_all() {
  const auto peers = peers_;
  for (const auto& [connection, peer] : peers) close(peer);
}

}  // namespace ckpt::ucx
