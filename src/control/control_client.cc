#include "control/control_client.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"
#include "control/client_impl.h"
#include "control/reach.h"

namespace ckpt {

using control::Call;
using control::Contribute;
using control::Payload;

namespace {

auto contribution(Call call, std::string_view tag, std::span<const int> ranks, std::uint64_t epoch,
                  const Status& vote = Status::ok()) {
  return [=](std::uint64_t number) -> control::Message {
    return Contribute{number, call, std::string(tag), {ranks.begin(), ranks.end()}, epoch, vote};
  };
}

template <typename Request>
auto key_request(std::string_view key) {
  return [key](std::uint64_t number) -> control::Message {
    return Request{number, std::string(key)};
  };
}

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::join(JoinOptions options,
                                                           Deadline::Clock::duration patience) {
  AbortSignal never;
  AbortSignal* const given = std::exchange(options.abort, nullptr);
  AbortSignal& abort = given != nullptr ? *given : never;
  CKPT_ASSIGN_OR_RETURN(const HostPort hub,
                        control::wait_for_listener(options.hub, Deadline::after(patience), abort));
  auto impl = std::make_unique<Impl>(std::move(options));
  CKPT_RETURN_IF_ERROR(impl->join(hub, patience, abort));
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(impl)));
}

ControlClient::ControlClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlClient::~ControlClient() = default;

int ControlClient::rank() const { return impl_->options().rank; }
int ControlClient::world_size() const { return impl_->options().world_size; }
const std::string& ControlClient::job() const { return impl_->options().job; }
const std::string& ControlClient::host_id() const { return impl_->options().host_id; }

Result<std::vector<ControlClient::Bytes>> ControlClient::all_gather(
    std::string_view tag, std::span<const int> ranks, std::span<const std::byte> mine,
    Deadline deadline, AbortSignal* abort, std::uint64_t epoch) {
  CKPT_ASSIGN_OR_RETURN(const Impl::Answer answer,
                        impl_->call(contribution(Call::kAllGather, tag, ranks, epoch),
                                    {Payload::copy_of(mine)}, deadline, abort));
  if (answer.payloads.size() != ranks.size()) {
    return protocol_error(concat("all-gather ", quoted(tag), " of ", ranks.size(),
                                 " ranks came back with ", answer.payloads.size(), " parts"));
  }
  std::vector<int> ascending(ranks.begin(), ranks.end());
  std::ranges::sort(ascending);
  std::vector<Bytes> out;
  out.reserve(ranks.size());
  for (const int rank : ranks) {
    const auto place = std::ranges::lower_bound(ascending, rank) - ascending.begin();
    out.push_back(answer.payloads[static_cast<std::size_t>(place)].to_vector());
  }
  return out;
}

Status ControlClient::barrier(std::string_view tag, std::span<const int> ranks, Deadline deadline,
                              AbortSignal* abort, std::uint64_t epoch) {
  return impl_->call(contribution(Call::kBarrier, tag, ranks, epoch), {}, deadline, abort).status();
}

Status ControlClient::vote(std::string_view tag, std::span<const int> ranks, const Status& mine,
                           Deadline deadline, AbortSignal* abort, std::uint64_t epoch) {
  return impl_->call(contribution(Call::kVote, tag, ranks, epoch, mine), {}, deadline, abort)
      .status();
}

Status ControlClient::put(std::string_view key, std::span<const std::byte> value,
                          Deadline deadline) {
  return impl_->call(key_request<control::Put>(key), {Payload::copy_of(value)}, deadline, nullptr)
      .status();
}

Result<ControlClient::Bytes> ControlClient::get(std::string_view key, Deadline deadline,
                                                AbortSignal* abort) {
  const Result<Impl::Answer> answer =
      impl_->call(key_request<control::Get>(key), {}, deadline, abort);
  if (!answer) return answer.status().with_context(concat("key ", quoted(key)));
  return answer->payloads.empty() ? Bytes() : answer->payloads.front().to_vector();
}

Result<bool> ControlClient::contains(std::string_view key, Deadline deadline) {
  CKPT_ASSIGN_OR_RETURN(const Impl::Answer answer,
                        impl_->call(key_request<control::Contains>(key), {}, deadline, nullptr));
  return answer.number != 0;
}

Status ControlClient::erase(std::string_view key, Deadline deadline) {
  return impl_->call(key_request<control::Erase>(key), {}, deadline, nullptr).status();
}

Result<std::uint64_t> ControlClient::begin_update(std::string_view tag, std::span<const int> ranks,
                                                  Deadline deadline, AbortSignal* abort) {
  CKPT_ASSIGN_OR_RETURN(
      const Impl::Answer answer,
      impl_->call(contribution(Call::kBeginUpdate, tag, ranks, 0), {}, deadline, abort));
  return answer.number;
}

void ControlClient::end_update(std::uint64_t epoch) { impl_->end_update(epoch); }

void ControlClient::abort(std::uint64_t epoch, Status cause) {
  impl_->post(control::Abort{epoch, std::move(cause)});
}

void ControlClient::watch(std::uint64_t epoch, std::shared_ptr<AbortSignal> signal) {
  impl_->watch(epoch, std::move(signal));
}

void ControlClient::send(int to_rank, std::uint64_t epoch, std::span<const std::byte> message) {
  impl_->post(control::Relay{to_rank, epoch}, {Payload::copy_of(message)});
}

void ControlClient::set_message_handler(MessageHandler handler) {
  impl_->set_message_handler(std::move(handler));
}

void ControlClient::publish_channel(std::uint64_t epoch, std::string_view address) {
  impl_->post(control::PublishChannel{epoch, std::string(address)});
}

void ControlClient::withdraw_channel(std::uint64_t epoch) {
  impl_->post(control::WithdrawChannel{epoch});
}

void ControlClient::on_peer_lost(PeerLostHandler handler) {
  impl_->set_peer_lost_handler(std::move(handler));
}

Status ControlClient::state() const { return impl_->state(); }
void ControlClient::leave() { impl_->leave(); }

}  // namespace ckpt
