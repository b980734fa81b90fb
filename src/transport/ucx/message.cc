#include "transport/ucx/message.h"

#include "base/strings.h"
#include "transport_message_generated.h"

namespace ckpt::ucx {
namespace {

namespace wire = transport::wire;
using Builder = flatbuffers::FlatBufferBuilder;

flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> put(Builder& builder,
                                                           const std::vector<std::byte>& bytes) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

struct BodyEncoder {
  Builder& builder;
  wire::Body type = wire::Body::NONE;

  flatbuffers::Offset<void> operator()(const Hello& hello) {
    type = wire::Body::Hello;
    return wire::CreateHello(builder, hello.version, builder.CreateString(hello.instance),
                             builder.CreateString(hello.label), put(builder, hello.address),
                             builder.CreateString(hello.owner_instance), hello.address_seal)
        .Union();
  }
  flatbuffers::Offset<void> operator()(const Request& request) {
    type = wire::Body::Request;
    std::vector<wire::Span> spans;
    spans.reserve(request.spans.size());
    for (const Request::Span& span : request.spans) {
      spans.emplace_back(span.region, span.offset, span.bytes);
    }
    return wire::CreateRequest(builder, request.read, request.request,
                               builder.CreateVectorOfStructs(spans))
        .Union();
  }
  flatbuffers::Offset<void> operator()(const Signal& signal) {
    type = wire::Body::Signal;
    return wire::CreateSignal(builder, put(builder, signal.message)).Union();
  }
  flatbuffers::Offset<void> operator()(const Refusal& refusal) {
    type = wire::Body::Refusal;
    return wire::CreateRefusal(builder, refusal.read, static_cast<int>(refusal.code),
                               builder.CreateString(refusal.text))
        .Union();
  }
  flatbuffers::Offset<void> operator()(const Served& served) {
    type = wire::Body::Served;
    return wire::CreateServed(builder, served.read, served.request).Union();
  }
  flatbuffers::Offset<void> operator()(const Bye&) {
    type = wire::Body::Bye;
    return wire::CreateBye(builder).Union();
  }
};

std::string text(const flatbuffers::String* string) { return string ? string->str() : ""; }

std::vector<std::byte> bytes_of(const flatbuffers::Vector<std::uint8_t>* vector) {
  if (vector == nullptr) return {};
  const auto* data = reinterpret_cast<const std::byte*>(vector->data());
  return std::vector<std::byte>(data, data + vector->size());
}

Result<Request> request_of(const wire::Request& request) {
  Request out{request.read(), request.request(), {}};
  if (request.spans()) {
    // The verifier does not look at the alignment of structs.
    if (request.spans()->size() > 0 &&
        reinterpret_cast<std::uintptr_t>(request.spans()->Data()) % alignof(wire::Span) != 0) {
      return protocol_error("damaged transport request");
    }
    out.spans.reserve(request.spans()->size());
    for (const wire::Span* span : *request.spans()) {
      out.spans.push_back({span->region(), span->offset(), span->bytes()});
    }
  }
  return out;
}

}  // namespace

std::vector<std::byte> encode_message(const Message& message) {
  Builder builder;
  BodyEncoder encoder{builder};
  const auto body = std::visit(encoder, message.body);
  wire::FinishMessageBuffer(builder, wire::CreateMessage(builder, message.connection,
                                                         message.sequence, encoder.type, body));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return std::vector<std::byte>(data, data + builder.GetSize());
}

Result<Message> decode_message(std::span<const std::byte> bytes) {
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());  // aligned
  const auto* data = reinterpret_cast<const std::uint8_t*>(copy.data());
  flatbuffers::Verifier verifier(data, copy.size());
  if (copy.size() < 8 || !wire::MessageBufferHasIdentifier(data) ||
      !wire::VerifyMessageBuffer(verifier)) {
    return protocol_error(concat("damaged transport message of ", bytes.size(), " bytes"));
  }
  const wire::Message* in = wire::GetMessage(data);
  Message out{in->connection(), in->sequence(), {}};
  // The verifier lets a union pass whose value is missing.
  switch (in->body() ? in->body_type() : wire::Body::NONE) {
    case wire::Body::Hello: {
      const wire::Hello* hello = in->body_as_Hello();
      out.body =
          Hello{hello->version(),           text(hello->instance()),       text(hello->label()),
                bytes_of(hello->address()), text(hello->owner_instance()), hello->address_seal()};
      return out;
    }
    case wire::Body::Request: {
      CKPT_ASSIGN_OR_RETURN(out.body, request_of(*in->body_as_Request()));
      return out;
    }
    case wire::Body::Signal:
      out.body = Signal{bytes_of(in->body_as_Signal()->message())};
      return out;
    case wire::Body::Refusal: {
      const wire::Refusal* refusal = in->body_as_Refusal();
      out.body =
          Refusal{refusal->read(), static_cast<StatusCode>(refusal->code()), text(refusal->text())};
      return out;
    }
    case wire::Body::Served:
      out.body = Served{in->body_as_Served()->read(), in->body_as_Served()->request()};
      return out;
    case wire::Body::Bye:
      out.body = Bye{};
      return out;
    case wire::Body::NONE:
      break;
  }
  return protocol_error("transport message of no known type: run the same release on both sides");
}

}  // namespace ckpt::ucx
