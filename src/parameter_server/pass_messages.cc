#include "parameter_server/pass_messages.h"

#include <cstring>

#include "base/strings.h"
#include "update_generated.h"

namespace ckpt {
namespace {

flatbuffers::Offset<fb::Handle> build(flatbuffers::FlatBufferBuilder& builder,
                                      const BufferHandle& handle) {
  const auto shared_memory = builder.CreateString(handle.shared_memory);
  const auto ipc = builder.CreateVector(reinterpret_cast<const std::uint8_t*>(handle.ipc.data()),
                                        handle.ipc.size());
  const auto uuid = builder.CreateString(handle.device_uuid);
  return fb::CreateHandle(builder, static_cast<std::uint8_t>(handle.kind), handle.bytes,
                          shared_memory, ipc, uuid);
}

std::vector<std::byte> finished(flatbuffers::FlatBufferBuilder& builder) {
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

template <typename Table>
Result<const Table*> verified_root(std::span<const std::byte> bytes, const char* what) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  flatbuffers::Verifier verifier(data, bytes.size());
  if (!verifier.VerifyBuffer<Table>(nullptr)) {
    return protocol_error(concat("a rank sent ", bytes.size(), " bytes that are no ", what,
                                 "; do all ranks run the same version?"));
  }
  return flatbuffers::GetRoot<Table>(data);
}

std::string text(const flatbuffers::String* string) {
  return string == nullptr ? std::string() : string->str();
}

std::vector<std::byte> blob(const flatbuffers::Vector<std::uint8_t>* vector) {
  if (vector == nullptr) return {};
  const auto* data = reinterpret_cast<const std::byte*>(vector->data());
  return {data, data + vector->size()};
}

BufferHandle handle(const fb::Handle* table) {
  if (table == nullptr) return {};
  return {static_cast<DeviceKind>(table->kind()), table->bytes(), text(table->shared_memory()),
          blob(table->ipc()), text(table->device_uuid())};
}

}  // namespace

std::vector<std::byte> encode(const PassOffer& offer) {
  flatbuffers::FlatBufferBuilder builder;
  const auto host_id = builder.CreateString(offer.host_id);
  const auto uuid = builder.CreateString(offer.device_uuid);
  std::vector<flatbuffers::Offset<fb::LostOwner>> lost;
  for (const LostOwner& owner : offer.lost_owners) {
    lost.push_back(fb::CreateLostOwner(builder, owner.rank, static_cast<int>(owner.why.code()),
                                       builder.CreateString(owner.why.message())));
  }
  const auto lost_owners = builder.CreateVector(lost);
  const auto devices = builder.CreateVectorOfStrings(offer.network.devices);
  builder.Finish(fb::CreateOffer(builder, host_id, static_cast<std::uint8_t>(offer.device_kind),
                                 uuid, offer.available_bytes, offer.ring_bytes, offer.bucket_bytes,
                                 offer.chunk_bytes, offer.catalog_fingerprint, offer.verify,
                                 static_cast<std::uint8_t>(offer.sharing), offer.instance_size,
                                 lost_owners, devices, offer.network.mbit, offer.communicator,
                                 offer.overlap, offer.kept, offer.kept_bytes));
  return finished(builder);
}

std::vector<std::byte> encode(const PassReady& ready) {
  flatbuffers::FlatBufferBuilder builder;
  const auto address = builder.CreateString(ready.address);
  const auto progress = builder.CreateString(ready.progress);
  const auto ring = build(builder, ready.ring);
  const auto fill = build(builder, ready.fill_staging);
  const auto receive = build(builder, ready.receive_staging);
  const auto descriptor =
      builder.CreateVector(reinterpret_cast<const std::uint8_t*>(ready.transport_descriptor.data()),
                           ready.transport_descriptor.size());
  const auto key =
      builder.CreateVector(reinterpret_cast<const std::uint8_t*>(ready.communicator_key.data()),
                           ready.communicator_key.size());
  const auto guard = builder.CreateString(ready.guard);
  builder.Finish(fb::CreateReady(builder, ready.plan_fingerprint, address, progress, ring, fill,
                                 receive, descriptor, ready.ring_region, key, guard));
  return finished(builder);
}

Result<PassOffer> decode_pass_offer(std::span<const std::byte> bytes) {
  CKPT_ASSIGN_OR_RETURN(const fb::Offer* table, verified_root<fb::Offer>(bytes, "offer"));
  PassOffer offer{text(table->host_id()),
                  static_cast<DeviceKind>(table->device_kind()),
                  text(table->device_uuid()),
                  table->available_bytes(),
                  table->ring_bytes(),
                  table->bucket_bytes(),
                  table->chunk_bytes(),
                  table->catalog_fingerprint(),
                  table->verify(),
                  static_cast<RingSharing>(table->ring_sharing()),
                  table->instance_size(),
                  {},
                  {},
                  table->communicator(),
                  table->overlap(),
                  table->kept(),
                  table->kept_bytes()};
  offer.network.mbit = table->network_mbit();
  if (table->network_devices() != nullptr) {
    for (const auto* device : *table->network_devices()) {
      offer.network.devices.push_back(device->str());
    }
  }
  if (table->lost_owners() == nullptr) return offer;
  for (const fb::LostOwner* owner : *table->lost_owners()) {
    const auto code = static_cast<StatusCode>(owner->code());
    if (code == StatusCode::kOk) return protocol_error("an owner is lost without a reason");
    offer.lost_owners.push_back({owner->rank(), Status(code, text(owner->why()))});
  }
  return offer;
}

Result<PassReady> decode_pass_ready(std::span<const std::byte> bytes) {
  CKPT_ASSIGN_OR_RETURN(const fb::Ready* table, verified_root<fb::Ready>(bytes, "readiness"));
  return PassReady{table->plan_fingerprint(),
                   text(table->address()),
                   text(table->progress()),
                   handle(table->ring()),
                   handle(table->fill_staging()),
                   handle(table->receive_staging()),
                   blob(table->transport_descriptor()),
                   table->ring_region(),
                   blob(table->communicator_key()),
                   text(table->guard())};
}

// Notes are a list of 32-bit numbers: kind, pass, then the ranks.
std::vector<std::byte> encode(const PassNote& note) {
  std::vector<std::int32_t> words = {static_cast<std::int32_t>(note.kind),
                                     static_cast<std::int32_t>(note.pass)};
  words.insert(words.end(), note.ranks.begin(), note.ranks.end());
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

std::optional<PassNote> decode_pass_note(std::span<const std::byte> bytes) {
  std::vector<std::int32_t> words(bytes.size() / sizeof(std::int32_t));
  if (words.size() < 2 || bytes.size() % sizeof(std::int32_t) != 0) return std::nullopt;
  std::memcpy(words.data(), bytes.data(), bytes.size());
  if (words[0] < 1 || words[0] > static_cast<std::int32_t>(PassNote::Kind::kEnd))
    return std::nullopt;
  return PassNote{static_cast<PassNote::Kind>(words[0]),
                  static_cast<std::uint32_t>(words[1]),
                  {words.begin() + 2, words.end()}};
}

}  // namespace ckpt
