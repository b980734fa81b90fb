#include "transport/descriptor.h"

#include <cstring>

#include "base/strings.h"
#include "transport/seal.h"
#include "transport_descriptor_generated.h"

namespace ckpt {
namespace {

/// The verifier does not look at the alignment of structs.
bool is_aligned(const flatbuffers::Vector<const transport::wire::Region*>* regions) {
  return regions == nullptr || regions->size() == 0 ||
         reinterpret_cast<std::uintptr_t>(regions->Data()) % alignof(transport::wire::Region) == 0;
}

constexpr std::size_t kSealBytes = sizeof(std::uint64_t);

/// Little-endian, as everything else in it.
void append_seal(std::vector<std::byte>& bytes) {
  const std::uint64_t seal = seal_of(bytes);
  for (std::size_t i = 0; i < kSealBytes; ++i) {
    bytes.push_back(static_cast<std::byte>(seal >> (8 * i)));
  }
}

bool seal_holds(std::span<const std::byte> bytes) {
  if (bytes.size() < kSealBytes) return false;
  std::vector<std::byte> content(bytes.begin(), bytes.end() - kSealBytes);
  append_seal(content);
  return std::memcmp(content.data(), bytes.data(), bytes.size()) == 0;
}

}  // namespace

std::vector<std::byte> encode_descriptor(const Descriptor& descriptor) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<transport::wire::Region> regions;
  regions.reserve(descriptor.regions.size());
  for (const Descriptor::Region& region : descriptor.regions) {
    regions.emplace_back(region.id, region.bytes, region.address);
  }
  const auto* address = reinterpret_cast<const std::uint8_t*>(descriptor.address.data());
  const auto root = transport::wire::CreateDescriptor(
      builder, kDescriptorVersion, builder.CreateString(descriptor.kind),
      builder.CreateString(descriptor.instance), builder.CreateString(descriptor.label),
      builder.CreateVector(address, descriptor.address.size()),
      builder.CreateVectorOfStructs(regions));
  transport::wire::FinishDescriptorBuffer(builder, root);
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  std::vector<std::byte> bytes(data, data + builder.GetSize());
  append_seal(bytes);
  return bytes;
}

Result<Descriptor> decode_descriptor(std::span<const std::byte> bytes, std::string_view kind) {
  // The verifier and struct reads want aligned bytes; the caller's may lie anywhere.
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  const auto* data = reinterpret_cast<const std::uint8_t*>(copy.data());
  flatbuffers::Verifier verifier(data, copy.size());
  if (copy.size() < 8 || !transport::wire::DescriptorBufferHasIdentifier(data) ||
      !transport::wire::VerifyDescriptorBuffer(verifier) ||
      !is_aligned(transport::wire::GetDescriptor(data)->regions())) {
    return protocol_error(concat("these ", bytes.size(),
                                 " bytes are no transport descriptor: pass what "
                                 "Transport::descriptor() of the owner returned"));
  }
  const transport::wire::Descriptor* wire = transport::wire::GetDescriptor(data);
  if (wire->version() != kDescriptorVersion) {
    return protocol_error(concat("transport descriptor of version ", wire->version(),
                                 ", this program reads version ", kDescriptorVersion,
                                 ": run the same release on both sides"));
  }
  if (!seal_holds(bytes)) {
    return protocol_error(concat("damaged transport descriptor of ", bytes.size(),
                                 " bytes: take what its owner has written anew"));
  }
  if (!kind.empty() && wire->kind()->string_view() != kind) {
    return protocol_error(concat("descriptor of the ", wire->kind()->string_view(),
                                 " transport, this is ", kind,
                                 ": choose the same transport on both sides"));
  }
  Descriptor descriptor;
  descriptor.kind = wire->kind()->str();
  descriptor.instance = wire->instance()->str();
  if (wire->label()) descriptor.label = wire->label()->str();
  if (wire->address()) {
    const auto* address = reinterpret_cast<const std::byte*>(wire->address()->data());
    descriptor.address.assign(address, address + wire->address()->size());
  }
  if (wire->regions()) {
    for (const transport::wire::Region* region : *wire->regions()) {
      descriptor.regions.push_back({region->id(), region->bytes(), region->address()});
    }
  }
  return descriptor;
}

}  // namespace ckpt
