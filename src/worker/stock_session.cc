#include "worker/stock_session.h"

#include <utility>

#include "base/host.h"
#include "base/strings.h"
#include "worker/process_watch.h"

namespace ckpt {

Result<std::unique_ptr<StockSession>> StockSession::start(GateConnection worker,
                                                          double heartbeat_timeout_seconds) {
  const std::string address = concat("ipc://@checkpoint-engine-relay-", random_id());
  ZmqOptions zmq;
  zmq.type = ZmqOptions::Type::kReq;
  zmq.heartbeat_timeout_seconds = heartbeat_timeout_seconds;
  zmq.own_process_only = true;
  CKPT_ASSIGN_OR_RETURN(auto socket, ZmqSocket::bind(address, zmq));
  CKPT_ASSIGN_OR_RETURN(PollSet poll_set, PollSet::create());
  CKPT_RETURN_IF_ERROR(poll_set.add(socket->fd()));
  CKPT_RETURN_IF_ERROR(poll_set.add(socket->event_fd()));
  CKPT_ASSIGN_OR_RETURN(UniqueFd endpoint, connect_abstract(address));
  auto process = watch_process(worker.peer.pid);
  std::unique_ptr<StockSession> session(
      new StockSession(std::move(socket), std::move(poll_set), worker.peer));
  CKPT_RETURN_IF_ERROR(session->poll_set_.add(session->backlog_.fd()));
  session->relay_ = std::make_unique<Relay>(std::move(worker.fd), std::move(endpoint),
                                            process ? *std::move(process) : UniqueFd());
  return session;
}

void StockSession::take_answers() {
  while (true) {
    auto message = socket_->receive();
    if (!message || !*message) return;
    const auto& content = (*message)->content;
    answer_.emplace(reinterpret_cast<const char*>(content.data()), content.size());
    owed_ = false;
  }
}

void StockSession::pump() {
  take_answers();
  bool ended = false;
  for (const ZmqEvent& event : socket_->events()) {
    if (event.kind == ZmqEvent::Kind::kDisconnected) ended = true;
  }
  if (ended) {
    take_answers();  // what it said before it went
    lost_ = true;
  }
  if (!ready_ && !lost_) ready_ = socket_->writable();
  if (answer_) {
    backlog_.set();
  } else {
    backlog_.clear();
  }
}

std::string_view StockSession::how_lost() const {
  switch (relay_->end()) {
    case Relay::End::kWorkerEnded:
      return "has ended";
    case Relay::End::kWorkerClosed:
      return "closed its connection";
    case Relay::End::kRunning:
    case Relay::End::kEndpointClosed:
      break;
  }
  return "stopped answering";
}

Status StockSession::ask(std::span<const std::byte> question) {
  CKPT_RETURN_IF_ERROR(socket_->send({}, question));
  owed_ = true;
  pump();  // sending may have consumed the descriptor's news
  return Status::ok();
}

std::optional<std::string> StockSession::take_answer() {
  backlog_.clear();
  return std::exchange(answer_, std::nullopt);
}

}  // namespace ckpt
