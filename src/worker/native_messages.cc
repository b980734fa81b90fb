#include "worker/native_messages.h"

#include <flatbuffers/flatbuffers.h>

#include <bit>
#include <cstring>
#include <utility>

#include "base/strings.h"
#include "worker_generated.h"

namespace ckpt::native {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using BytesOffset = flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>>;

struct EncodedBody {
  wire::Body type;
  flatbuffers::Offset<void> offset;
};

BytesOffset add_bytes(Builder& builder, std::span<const std::byte> bytes) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

flatbuffers::Offset<wire::Entry> add_entry(Builder& builder, const RingEntry& entry) {
  const auto name = builder.CreateString(entry.info->name);
  const auto shape = builder.CreateVector(entry.info->shape);
  return wire::CreateEntry(builder, name, static_cast<std::uint8_t>(entry.info->dtype), shape,
                           entry.ring_offset, entry.begin, entry.bytes, entry.digest);
}

EncodedBody add_bucket(Builder& builder, std::uint32_t number, std::span<const RingEntry> entries) {
  std::vector<flatbuffers::Offset<wire::Entry>> offsets;
  offsets.reserve(entries.size());
  for (const RingEntry& entry : entries) offsets.push_back(add_entry(builder, entry));
  const auto bucket = wire::CreateBucket(builder, number, builder.CreateVector(offsets));
  return {wire::Body::Bucket, bucket.Union()};
}

/// One overload for each body; std::visit picks.
struct BodyEncoder {
  Builder& builder;

  EncodedBody operator()(const Hello& m) const {
    const auto software = builder.CreateString(m.software);
    const auto nonce = add_bytes(builder, m.nonce);
    return {wire::Body::Hello,
            wire::CreateHello(builder, m.protocol, software, m.pid, m.capabilities,
                              m.digest_algorithm, nonce, m.has_secret)
                .Union()};
  }
  EncodedBody operator()(const Challenge& m) const {
    const auto software = builder.CreateString(m.software);
    const auto nonce = add_bytes(builder, m.nonce);
    const auto proof = add_bytes(builder, m.proof);
    return {
        wire::Body::Challenge,
        wire::CreateChallenge(builder, m.protocol, software, nonce, proof, m.has_secret).Union()};
  }
  EncodedBody operator()(const Proof& m) const {
    return {wire::Body::Proof, wire::CreateProof(builder, add_bytes(builder, m.proof)).Union()};
  }
  EncodedBody operator()(const Welcome& m) const {
    return {wire::Body::Welcome, wire::CreateWelcome(builder, m.rank, m.verify, m.digest_algorithm,
                                                     m.total_tensors, m.total_bytes)
                                     .Union()};
  }
  EncodedBody operator()(const OpenRing& m) const {
    const auto shared_memory = builder.CreateString(m.ring.shared_memory);
    const auto ipc = add_bytes(builder, m.ring.ipc);
    const auto uuid = builder.CreateString(m.ring.device_uuid);
    return {wire::Body::OpenRing,
            wire::CreateOpenRing(builder, static_cast<std::uint8_t>(m.ring.kind), m.ring.bytes,
                                 shared_memory, ipc, uuid)
                .Union()};
  }
  EncodedBody operator()(const RingOpened&) const {
    return {wire::Body::RingOpened, wire::CreateRingOpened(builder).Union()};
  }
  EncodedBody operator()(const Bucket& m) const {
    std::vector<RingEntry> entries;
    entries.reserve(m.entries.size());
    for (const Entry& e : m.entries) {
      entries.push_back({&e.info, e.ring_offset, e.begin, e.bytes, e.digest});
    }
    return add_bucket(builder, m.number, entries);
  }
  EncodedBody operator()(const BucketLoaded& m) const {
    return {
        wire::Body::BucketLoaded,
        wire::CreateBucketLoaded(builder, m.ack.bucket, m.ack.tensors, m.ack.bytes,
                                 m.ack.verified_tensors, m.ack.load_seconds, m.ack.verify_seconds)
            .Union()};
  }
  EncodedBody operator()(const Release&) const {
    return {wire::Body::Release, wire::CreateRelease(builder).Union()};
  }
  EncodedBody operator()(const Released&) const {
    return {wire::Body::Released, wire::CreateReleased(builder).Union()};
  }
  EncodedBody operator()(const FinishPass&) const {
    return {wire::Body::FinishPass, wire::CreateFinishPass(builder).Union()};
  }
  EncodedBody operator()(const PassFinished&) const {
    return {wire::Body::PassFinished, wire::CreatePassFinished(builder).Union()};
  }
  EncodedBody operator()(const Failure& m) const {
    const auto text = builder.CreateString(m.cause.message());
    return {wire::Body::Failure, wire::CreateFailure(builder, static_cast<int>(m.cause.code()),
                                                     m.cause.rank().value_or(-1), text)
                                     .Union()};
  }
};

Bytes finish_message(Builder& builder, std::uint64_t epoch, EncodedBody body) {
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, epoch, body.type, body.offset));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return Bytes(data, data + builder.GetSize());
}

std::string text_of(const flatbuffers::String* text) { return text ? text->str() : std::string(); }

Bytes bytes_of(const flatbuffers::Vector<std::uint8_t>* bytes) {
  if (bytes == nullptr) return {};
  const auto* data = reinterpret_cast<const std::byte*>(bytes->data());
  return Bytes(data, data + bytes->size());
}

/// The verifier does not look at the alignment of a vector's elements.
std::vector<std::int64_t> shape_of(const flatbuffers::Vector<std::int64_t>* shape) {
  static_assert(std::endian::native == std::endian::little, "the wire is little-endian");
  if (shape == nullptr || shape->size() == 0) return {};
  std::vector<std::int64_t> dims(shape->size());
  std::memcpy(dims.data(), shape->Data(), dims.size() * sizeof(std::int64_t));
  return dims;
}

Result<Entry> decode_entry(const wire::Entry& e) {
  if (e.dtype() > static_cast<std::uint8_t>(DType::kF4)) {
    return protocol_error(
        concat("tensor ", quoted(text_of(e.name())), " has the unknown dtype number ", e.dtype()));
  }
  auto info =
      make_tensor_info(text_of(e.name()), static_cast<DType>(e.dtype()), shape_of(e.shape()));
  if (!info) return protocol_error(info.status().message());
  if (e.begin() > info->bytes || e.bytes() > info->bytes - e.begin()) {
    return protocol_error(concat("bytes ", e.begin(), " + ", e.bytes(), " of tensor ",
                                 quoted(info->name), ", which has ", info->bytes));
  }
  return Entry{*std::move(info), e.ring_offset(), e.begin(), e.bytes(), e.digest()};
}

Result<Body> decode_bucket(const wire::Bucket& m) {
  Bucket bucket{m.number(), {}};
  if (m.entries() != nullptr) {
    bucket.entries.reserve(m.entries()->size());
    for (const wire::Entry* e : *m.entries()) {
      CKPT_ASSIGN_OR_RETURN(Entry entry, decode_entry(*e));
      bucket.entries.push_back(std::move(entry));
    }
  }
  return Body(std::move(bucket));
}

Result<Body> decode_open_ring(const wire::OpenRing& m) {
  if (m.kind() > static_cast<std::uint8_t>(DeviceKind::kCuda)) {
    return protocol_error(concat("a ring of the unknown device kind ", m.kind()));
  }
  return Body(OpenRing{{static_cast<DeviceKind>(m.kind()), m.bytes(), text_of(m.shared_memory()),
                        bytes_of(m.ipc()), text_of(m.device_uuid())}});
}

Result<Body> decode_failure(const wire::Failure& m) {
  auto code = static_cast<StatusCode>(m.code());
  if (code == StatusCode::kOk) return protocol_error("a failure with the code for success");
  // A newer peer may know more codes than we do.
  if (status_code_name(code) == "unknown error") code = StatusCode::kPeerError;
  Status cause(code, text_of(m.text()));
  if (m.rank() >= 0) cause = cause.on_rank(m.rank());
  return Body(Failure{std::move(cause)});
}

Result<Body> decode_body(const wire::Message& message) {
  switch (message.body_type()) {
    case wire::Body::Hello: {
      const wire::Hello& m = *message.body_as_Hello();
      return Body(Hello{m.protocol(), text_of(m.software()), m.pid(), m.capabilities(),
                        m.digest_algorithm(), bytes_of(m.nonce()), m.has_secret()});
    }
    case wire::Body::Challenge: {
      const wire::Challenge& m = *message.body_as_Challenge();
      return Body(Challenge{m.protocol(), text_of(m.software()), bytes_of(m.nonce()),
                            bytes_of(m.proof()), m.has_secret()});
    }
    case wire::Body::Proof:
      return Body(Proof{bytes_of(message.body_as_Proof()->proof())});
    case wire::Body::Welcome: {
      const wire::Welcome& m = *message.body_as_Welcome();
      return Body(
          Welcome{m.rank(), m.verify(), m.digest_algorithm(), m.total_tensors(), m.total_bytes()});
    }
    case wire::Body::OpenRing:
      return decode_open_ring(*message.body_as_OpenRing());
    case wire::Body::RingOpened:
      return Body(RingOpened{});
    case wire::Body::Bucket:
      return decode_bucket(*message.body_as_Bucket());
    case wire::Body::BucketLoaded: {
      const wire::BucketLoaded& m = *message.body_as_BucketLoaded();
      return Body(BucketLoaded{{m.number(), m.tensors(), m.bytes(), m.verified_tensors(),
                                m.load_seconds(), m.verify_seconds()}});
    }
    case wire::Body::Release:
      return Body(Release{});
    case wire::Body::Released:
      return Body(Released{});
    case wire::Body::FinishPass:
      return Body(FinishPass{});
    case wire::Body::PassFinished:
      return Body(PassFinished{});
    case wire::Body::Failure:
      return decode_failure(*message.body_as_Failure());
    case wire::Body::NONE:
      break;
  }
  return protocol_error(concat("a body of the unknown type ", static_cast<int>(message.body_type()),
                               "; is the other side newer?"));
}

}  // namespace

std::string_view body_name(const Body& body) {
  return wire::EnumNameBody(static_cast<wire::Body>(body.index() + 1));
}

Bytes encode(std::uint64_t epoch, const Body& body) {
  Builder builder;
  return finish_message(builder, epoch, std::visit(BodyEncoder{builder}, body));
}

Bytes encode_bucket(std::uint64_t epoch, std::uint32_t number, std::span<const RingEntry> entries) {
  Builder builder(128 + entries.size() * 192);
  return finish_message(builder, epoch, add_bucket(builder, number, entries));
}

Result<Message> decode(std::span<const std::byte> message) {
  // FlatBuffers reads scalars in place, at the alignment they had when written.
  Bytes aligned;
  if (reinterpret_cast<std::uintptr_t>(message.data()) % 16 != 0) {
    aligned.assign(message.begin(), message.end());
    message = aligned;
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(message.data());
  constexpr flatbuffers::uoffset_t kDepth = 8;
  // A table takes at least 8 bytes, but several offsets may name one table: bound the work.
  flatbuffers::Verifier verifier(data, message.size(), kDepth,
                                 static_cast<flatbuffers::uoffset_t>(message.size() / 8 + 1));
  if (message.size() < 8 || message.size() >= FLATBUFFERS_MAX_BUFFER_SIZE ||
      !wire::VerifyMessageBuffer(verifier)) {
    return protocol_error(concat("a message of ", message.size(), " bytes is none of ours"));
  }
  const wire::Message& root = *wire::GetMessage(data);
  CKPT_ASSIGN_OR_RETURN(Body body, decode_body(root));
  return Message{root.epoch(), std::move(body)};
}

}  // namespace ckpt::native
