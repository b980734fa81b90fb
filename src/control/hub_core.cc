#include "control/hub_core.h"

#include <algorithm>

#include "base/log.h"
#include "base/strings.h"

namespace ckpt::control {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

Status not_known_any_more() {
  return peer_lost(
      "the hub does not know this connection (any more): the rank was silent for too long and "
      "taken for lost; join again");
}

}  // namespace

void HubCore::receive(const Route& route, Envelope envelope, TimePoint now) {
  if (const auto* joining = std::get_if<Join>(&envelope.message)) return join(route, *joining, now);
  if (const auto* attaching = std::get_if<Attach>(&envelope.message)) {
    if (!membership_.attach(attaching->session, route)) {
      send(route, Refused{not_known_any_more()});
    }
    return;
  }
  Member* member = membership_.find(route);
  if (member == nullptr) {
    if (std::holds_alternative<Leave>(envelope.message)) return send(route, Left{});
    return send(route, Refused{not_known_any_more()});
  }
  member->last_heard = now;
  handle(*member, envelope.message, std::move(envelope.payloads));
}

void HubCore::receive_garbage(const Route& route, const Status& what) {
  log_warning("control: dropped a message: ", what.message());
  send(route, Refused{what});
}

void HubCore::join(const Route& route, const Join& join, TimePoint now) {
  const Status admitted = membership_.admit(join, route, options_.new_session(), now);
  if (!admitted.is_ok()) {
    log_warning("control: refused to let rank ", join.rank, " join: ", admitted.message());
    return send(route, Refused{admitted});
  }
  const Member& member = *membership_.find(join.rank);
  send(route,
       Welcome{member.session, static_cast<std::uint32_t>(options_.heartbeat_interval.count()),
               static_cast<std::uint32_t>(options_.heartbeat_timeout.count())});
  log_debug("control: ", member.describe(), " has joined");
  next_tick_ = std::min(next_tick_, std::max(now, membership_.gives_up(member)));
  if (!membership_.complete()) return;
  if (membership_.missing().empty()) return announce_complete();
  send(route, Ready{});
}

void HubCore::announce_complete() {
  // A rank that was ready before takes it as a beat.
  for (const auto& [rank, member] : membership_.members()) send(member.control, Ready{});
}

void HubCore::handle(Member& member, const Message& message, std::vector<Payload> payloads) {
  const int rank = member.rank;
  const auto first_payload = [&payloads] {
    return payloads.empty() ? Payload() : std::move(payloads.front());
  };
  std::visit(
      Overloaded{
          [](const Pulse&) {},
          [&](const Leave&) { leave(member); },
          [&](const Contribute& m) { contribute(member, m, std::move(payloads)); },
          [&](const Withdraw& m) { withdraw(member, m); },
          [&](const Put& m) {
            const Payload value = first_payload();
            for (const auto& waiter : store_.put(m.key, value)) {
              answer(waiter.rank, waiter.request, Status::ok(), 0, {value});
            }
            answer(rank, m.request, Status::ok());
          },
          [&](const Get& m) {
            if (auto value = store_.get(m.key, {rank, m.request})) {
              answer(rank, m.request, Status::ok(), 0, {std::move(*value)});
            }
          },
          [&](const Contains& m) {
            answer(rank, m.request, Status::ok(), store_.contains(m.key) ? 1 : 0);
          },
          [&](const Erase& m) {
            store_.erase(m.key);
            answer(rank, m.request, Status::ok());
          },
          [&](const EndUpdate& m) { end_update(rank, m.epoch); },
          [&](const Abort& m) {
            if (epochs_.has(rank, m.epoch)) {
              publish(epochs_.abort(m.epoch, m.cause.is_ok() ? aborted("aborted without a cause")
                                                             : m.cause.on_rank(rank)));
            }
          },
          [&](const Relay& m) { relay(member, m, std::move(payloads)); },
          [&](const PublishChannel& m) { member.channels[m.epoch] = m.address; },
          [&](const WithdrawChannel& m) { member.channels.erase(m.epoch); },
          [&](const auto&) {
            receive_garbage(
                member.control,
                protocol_error(concat("rank ", rank, " sent a message that only a hub sends")));
          },
      },
      message);
}

void HubCore::contribute(Member& member, const Contribute& call, std::vector<Payload> payloads) {
  Status possible = membership_.check_ranks(call.ranks, member.rank);
  if (possible.is_ok() && call.epoch != 0) possible = epochs_.check(member.rank, call.epoch);
  if (!possible.is_ok()) {
    return answer(member.rank, call.request,
                  possible.with_context(describe_call(call.call, call.tag)));
  }
  publish(collectives_.contribute(member.rank, call,
                                  payloads.empty() ? Payload() : std::move(payloads.front())));
}

void HubCore::withdraw(Member& member, const Withdraw& request) {
  if (store_.withdraw({member.rank, request.request})) {
    return answer(member.rank, request.request, request.cause);
  }
  publish(collectives_.withdraw(
      member.rank, request.request,
      request.cause.is_ok() ? aborted("gave up without a cause") : request.cause));
}

void HubCore::relay(Member& member, const Relay& relay, std::vector<Payload> payloads) {
  const Member* receiver = membership_.find(relay.peer);
  if (receiver == nullptr) return;
  if (relay.epoch != 0 &&
      !(epochs_.has(member.rank, relay.epoch) && epochs_.has(relay.peer, relay.epoch))) {
    return;
  }
  send(receiver->control, Relay{member.rank, relay.epoch}, std::move(payloads));
}

void HubCore::end_update(int rank, std::uint64_t epoch) {
  if (epochs_.end(rank, epoch)) {
    publish(collectives_.end_epoch(epoch, aborted(concat("update ", epoch, " is over"))));
  }
}

Member HubCore::remove(int rank, const Status& cause) {
  store_.remove_rank(rank);
  publish(collectives_.remove_rank(rank, cause));
  std::vector<std::uint64_t> over;
  for (const AbortNotice& notice : epochs_.remove_rank(rank, cause, over)) publish(notice);
  for (const std::uint64_t epoch : over) {
    publish(collectives_.end_epoch(epoch, aborted(concat("update ", epoch, " is over"))));
  }
  return membership_.remove(rank, cause);
}

void HubCore::leave(Member& member) {
  const Route route = member.control;
  log_debug("control: ", member.describe(), " has left");
  remove(member.rank,
         peer_lost(concat(member.describe(), " has left the job")).on_rank(member.rank));
  send(route, Left{});
}

void HubCore::lose(int rank, const Status& cause) {
  log_warning("control: ", cause.message());
  PeerLost news{rank, {}, {}, cause};
  std::vector<Channel> channels;
  if (const Member* gone = membership_.find(rank); gone != nullptr) {
    news.host_id = gone->host_id;
    for (const auto& [epoch, address] : gone->channels) {
      channels.push_back({epoch, address});
      news.channels.push_back({epoch, address});
    }
  }
  // Before anything ends by it: a process that ends then knows whom it has to set free.
  for (const auto& [other, member] : membership_.members()) {
    if (other == rank) continue;
    const bool same_host = member.host_id == news.host_id;
    send(member.control,
         Lost{rank, news.host_id, same_host ? channels : std::vector<Channel>(), cause});
  }
  remove(rank, cause);
  if (options_.on_lost) options_.on_lost(news);
}

void HubCore::disconnected(const Route& route) {
  const Member* member = membership_.find(route);
  if (member == nullptr) return;
  lose(member->rank, peer_lost(concat(member->describe(),
                                      " is lost: its connection to the hub closed, as when the "
                                      "process is killed; look at its log and start it again"))
                         .on_rank(member->rank));
}

void HubCore::tick(TimePoint now) {
  std::vector<const Member*> silent;
  for (const auto& [rank, member] : membership_.members()) {
    if (now - member.last_heard >= options_.heartbeat_timeout) silent.push_back(&member);
  }
  for (const Member* member : silent) {
    const int rank = member->rank;
    lose(rank, peer_lost(concat(member->describe(), " is lost: silent for ",
                                options_.heartbeat_timeout.count(),
                                " ms; the process hangs or its host is cut off: look there, end it "
                                "and start it again"))
                   .on_rank(rank));
  }
  expire_patience(now);
  if (now >= next_beat_) {
    probe();
    next_beat_ = now + options_.heartbeat_interval;
  }
  next_tick_ = next_beat_;
  for (const auto& [rank, member] : membership_.members()) {
    next_tick_ = std::min(next_tick_, member.last_heard + options_.heartbeat_timeout);
    if (!membership_.complete()) {
      next_tick_ = std::min(next_tick_, membership_.gives_up(member));
    }
  }
}

void HubCore::expire_patience(TimePoint now) {
  if (membership_.complete()) return;
  const std::vector<int> missing = membership_.missing();
  std::vector<int> tired;
  for (const auto& [rank, member] : membership_.members()) {
    if (now >= membership_.gives_up(member)) tired.push_back(rank);
  }
  for (const int rank : tired) {
    const Route route = membership_.find(rank)->control;
    remove(rank, peer_lost(concat("rank ", rank, " gave up waiting for the job")).on_rank(rank));
    send(route, Refused{deadline_exceeded(
                    concat(describe_ranks(missing), " of ", membership_.world_size(),
                           " never joined: look whether they run and can reach the hub"))});
  }
}

void HubCore::excuse(std::chrono::steady_clock::duration gap) {
  for (auto& [rank, member] : membership_.members()) member.last_heard += gap;
}

bool HubCore::claims_held_rank(const Message& message) const {
  const auto* join = std::get_if<Join>(&message);
  return join != nullptr && membership_.members().contains(join->rank);
}

void HubCore::probe() {
  for (const auto& [rank, member] : membership_.members()) {
    send(member.control, Pulse{});
    if (!member.bulk.empty()) send(member.bulk, Pulse{});
  }
}

void HubCore::publish(const Completions& completions) {
  for (const Completion& completion : completions) {
    std::uint64_t number = 0;
    if (completion.call == Call::kBeginUpdate && completion.status.is_ok()) {
      number = epochs_.begin(completion.ranks);
    }
    for (const auto& waiter : completion.waiters) {
      answer(waiter.rank, waiter.request, completion.status, number, completion.payloads);
    }
  }
}

void HubCore::publish(const AbortNotice& notice) {
  if (notice.ranks.empty()) return;
  // First the signal, then the calls that it ends: both carry the same cause.
  for (const int rank : notice.ranks) {
    if (const Member* member = membership_.find(rank)) {
      send(member->control, Abort{notice.epoch, notice.cause});
    }
  }
  publish(collectives_.end_epoch(notice.epoch, notice.cause));
}

void HubCore::answer(int rank, std::uint64_t request, const Status& cause, std::uint64_t number,
                     std::vector<Payload> payloads) {
  const Member* member = membership_.find(rank);
  if (member == nullptr) return;
  const bool bulk = !member->bulk.empty() && payload_bytes(payloads) > kMaxControlPayload;
  send(bulk ? member->bulk : member->control, Outcome{request, cause, number}, std::move(payloads));
}

void HubCore::send(const Route& route, Message message, std::vector<Payload> payloads) {
  outgoing_.push_back({route, {std::move(message), std::move(payloads)}});
}

}  // namespace ckpt::control
