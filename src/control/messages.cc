#include "control/messages.h"

#include <flatbuffers/flatbuffers.h>

#include "base/strings.h"
#include "control_generated.h"

namespace ckpt::control {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
template <typename T>
using Offset = flatbuffers::Offset<T>;

Offset<wire::Cause> write_cause(Builder& out, const Status& status) {
  if (status.is_ok()) return 0;
  return wire::CreateCauseDirect(out, static_cast<int>(status.code()), status.message().c_str(),
                                 status.rank().value_or(-1));
}

auto write(Builder& out, const Join& m) {
  return wire::CreateJoinDirect(out, m.protocol, m.job.c_str(), m.secret.c_str(), m.rank,
                                m.world_size, m.host_id.c_str(), m.host_name.c_str(), m.process,
                                m.patience_ms);
}
auto write(Builder& out, const Refused& m) {
  return wire::CreateRefused(out, write_cause(out, m.cause));
}
auto write(Builder& out, const Welcome& m) {
  return wire::CreateWelcomeDirect(out, m.session.c_str(), m.interval_ms, m.timeout_ms);
}
auto write(Builder& out, const Attach& m) {
  return wire::CreateAttachDirect(out, m.session.c_str());
}
auto write(Builder& out, const Ready&) { return wire::CreateReady(out); }
auto write(Builder& out, const Pulse&) { return wire::CreatePulse(out); }
auto write(Builder& out, const Leave&) { return wire::CreateLeave(out); }
auto write(Builder& out, const Left&) { return wire::CreateLeft(out); }
auto write(Builder& out, const Lost& m) {
  std::vector<Offset<wire::Channel>> channels;
  for (const Channel& channel : m.channels) {
    channels.push_back(wire::CreateChannelDirect(out, channel.epoch, channel.address.c_str()));
  }
  return wire::CreateLostDirect(out, m.rank, m.host_id.c_str(), &channels,
                                write_cause(out, m.cause));
}
auto write(Builder& out, const Contribute& m) {
  return wire::CreateContributeDirect(out, m.request, static_cast<wire::Call>(m.call),
                                      m.tag.c_str(), &m.ranks, m.epoch, write_cause(out, m.vote));
}
auto write(Builder& out, const Withdraw& m) {
  return wire::CreateWithdraw(out, m.request, write_cause(out, m.cause));
}
auto write(Builder& out, const Put& m) {
  return wire::CreatePutDirect(out, m.request, m.key.c_str());
}
auto write(Builder& out, const Get& m) {
  return wire::CreateGetDirect(out, m.request, m.key.c_str());
}
auto write(Builder& out, const Contains& m) {
  return wire::CreateContainsDirect(out, m.request, m.key.c_str());
}
auto write(Builder& out, const Erase& m) {
  return wire::CreateEraseDirect(out, m.request, m.key.c_str());
}
auto write(Builder& out, const Outcome& m) {
  return wire::CreateOutcome(out, m.request, write_cause(out, m.cause), m.number);
}
auto write(Builder& out, const EndUpdate& m) { return wire::CreateEndUpdate(out, m.epoch); }
auto write(Builder& out, const Abort& m) {
  return wire::CreateAbort(out, m.epoch, write_cause(out, m.cause));
}
auto write(Builder& out, const Relay& m) { return wire::CreateRelay(out, m.peer, m.epoch); }
auto write(Builder& out, const PublishChannel& m) {
  return wire::CreatePublishChannelDirect(out, m.epoch, m.address.c_str());
}
auto write(Builder& out, const WithdrawChannel& m) {
  return wire::CreateWithdrawChannel(out, m.epoch);
}

std::string text(const flatbuffers::String* field) { return field ? field->str() : std::string(); }

StatusCode read_code(int code) {
  const auto known = static_cast<StatusCode>(code);
  // A code of a newer version keeps its text.
  return status_code_name(known) == "unknown error" ? StatusCode::kInternal : known;
}

Status read_cause(const wire::Cause* field) {
  if (field == nullptr || field->code() == 0) return Status::ok();
  const Status status(read_code(field->code()), text(field->message()));
  return field->rank() >= 0 ? status.on_rank(field->rank()) : status;
}

Message read(const wire::Join& m) {
  return Join{m.protocol(),   text(m.job()),     text(m.secret()),    m.rank(),
              m.world_size(), text(m.host_id()), text(m.host_name()), m.process(),
              m.patience_ms()};
}
Message read(const wire::Refused& m) { return Refused{read_cause(m.cause())}; }
Message read(const wire::Welcome& m) {
  return Welcome{text(m.session()), m.interval_ms(), m.timeout_ms()};
}
Message read(const wire::Attach& m) { return Attach{text(m.session())}; }
Message read(const wire::Ready&) { return Ready{}; }
Message read(const wire::Pulse&) { return Pulse{}; }
Message read(const wire::Leave&) { return Leave{}; }
Message read(const wire::Left&) { return Left{}; }
Message read(const wire::Lost& m) {
  Lost lost{m.rank(), text(m.host_id()), {}, read_cause(m.cause())};
  if (m.channels() != nullptr) {
    for (const wire::Channel* channel : *m.channels()) {
      lost.channels.push_back({channel->epoch(), text(channel->address())});
    }
  }
  return lost;
}
Message read(const wire::Contribute& m) {
  std::vector<int> ranks;
  if (m.ranks() != nullptr) ranks.assign(m.ranks()->begin(), m.ranks()->end());
  return Contribute{m.request(), static_cast<Call>(m.call()), text(m.tag()), std::move(ranks),
                    m.epoch(),   read_cause(m.vote())};
}
Message read(const wire::Withdraw& m) { return Withdraw{m.request(), read_cause(m.cause())}; }
Message read(const wire::Put& m) { return Put{m.request(), text(m.key())}; }
Message read(const wire::Get& m) { return Get{m.request(), text(m.key())}; }
Message read(const wire::Contains& m) { return Contains{m.request(), text(m.key())}; }
Message read(const wire::Erase& m) { return Erase{m.request(), text(m.key())}; }
Message read(const wire::Outcome& m) {
  return Outcome{m.request(), read_cause(m.cause()), m.number()};
}
Message read(const wire::EndUpdate& m) { return EndUpdate{m.epoch()}; }
Message read(const wire::Abort& m) { return Abort{m.epoch(), read_cause(m.cause())}; }
Message read(const wire::Relay& m) { return Relay{m.peer(), m.epoch()}; }
Message read(const wire::PublishChannel& m) { return PublishChannel{m.epoch(), text(m.address())}; }
Message read(const wire::WithdrawChannel& m) { return WithdrawChannel{m.epoch()}; }

bool valid(const wire::Message& message) {
  const wire::Contribute* contribute = message.body_as_Contribute();
  return contribute == nullptr || contribute->call() <= wire::Call::MAX;
}

/// The union's member as a value; T... are its tables.
template <typename... T>
Result<Message> read_body(const wire::Message& message) {
  Result<Message> result = protocol_error(
      concat("control message of unknown kind ", static_cast<int>(message.body_type()),
             ": the peer runs another version of checkpoint-engine"));
  ((message.body_type() == wire::BodyTraits<T>::enum_value
        ? void(result = read(*static_cast<const T*>(message.body())))
        : void()),
   ...);
  return result;
}

}  // namespace

std::size_t payload_bytes(const std::vector<Payload>& payloads) {
  std::size_t bytes = 0;
  for (const Payload& payload : payloads) bytes += payload.bytes().size();
  return bytes;
}

std::vector<std::byte> encode(const Message& message) {
  Builder out(256);
  std::visit(
      [&out]<typename T>(const T& body) {
        const auto offset = write(out, body);
        using Table = typename std::remove_cvref_t<decltype(offset)>;
        const auto finish = [&out]<typename W>(Offset<W> table) {
          wire::FinishMessageBuffer(
              out, wire::CreateMessage(out, wire::BodyTraits<W>::enum_value, table.Union()));
        };
        finish(Table(offset));
      },
      message);
  const auto* begin = reinterpret_cast<const std::byte*>(out.GetBufferPointer());
  return {begin, begin + out.GetSize()};
}

Result<Message> decode(std::span<const std::byte> frame) {
  // FlatBuffers reads scalars in place; a frame inside a network buffer may lie at any address.
  alignas(16) std::byte small[1024];
  std::vector<std::max_align_t> large;
  std::byte* aligned = small;
  if (frame.size() > sizeof(small)) {
    large.resize(frame.size() / sizeof(std::max_align_t) + 1);
    aligned = reinterpret_cast<std::byte*>(large.data());
  }
  if (!frame.empty()) std::memcpy(aligned, frame.data(), frame.size());
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(aligned);
  flatbuffers::Verifier verifier(bytes, frame.size(), 8, 1 << 20);
  if (!wire::VerifyMessageBuffer(verifier)) {
    return protocol_error(concat("a frame of ", frame.size(),
                                 " bytes is no control message: something else, or another version "
                                 "of checkpoint-engine, talks to this port"));
  }
  const wire::Message& message = *wire::GetMessage(bytes);
  if (message.body() == nullptr || !valid(message)) {
    return protocol_error("a control message has an empty or impossible body");
  }
  return read_body<wire::Join, wire::Refused, wire::Welcome, wire::Attach, wire::Ready, wire::Pulse,
                   wire::Leave, wire::Left, wire::Lost, wire::Contribute, wire::Withdraw, wire::Put,
                   wire::Get, wire::Contains, wire::Erase, wire::Outcome, wire::EndUpdate,
                   wire::Abort, wire::Relay, wire::PublishChannel, wire::WithdrawChannel>(message);
}

}  // namespace ckpt::control
