#include "trial/ceiling.h"

#include "base/host.h"
#include "base/strings.h"
#include "device/copy_rate.h"

namespace ckpt::bench {
namespace {

constexpr std::uint64_t kBuffer = 256 << 20;

}  // namespace

Result<std::unique_ptr<Upload>> Upload::create(Device& device) {
  auto upload = std::make_unique<Upload>();
  upload->device_ = &device;
  CKPT_ASSIGN_OR_RETURN(upload->from_, PinnedMemory::create(device, kBuffer));
  CKPT_ASSIGN_OR_RETURN(upload->to_, device.allocate(kBuffer, concat("gpu-update-", random_id())));
  CKPT_ASSIGN_OR_RETURN(upload->stream_, device.make_stream());
  return upload;
}

Result<double> Upload::measure(std::uint64_t chunk, double seconds) {
  return measure_copy_rate(*stream_, to_->data(), from_->data(), kBuffer, chunk, seconds);
}

Result<double> Upload::measure_peer(const BufferHandle& handle, std::uint64_t chunk,
                                    double seconds) {
  CKPT_ASSIGN_OR_RETURN(const auto peer, device_->open(handle));
  return measure_copy_rate(*stream_, to_->data(), peer->data(), kBuffer, chunk, seconds);
}

Result<double> Upload::measure_back(std::uint64_t chunk, double seconds) {
  return measure_copy_rate(*stream_, from_->data(), to_->data(), kBuffer, chunk, seconds);
}

}  // namespace ckpt::bench
