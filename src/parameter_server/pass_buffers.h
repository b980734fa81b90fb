// The memory of one pass on one rank: ring, staging, the progress board of its host, and what it
// opens of others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collective/host_progress.h"
#include "collective/peer/peer_spread.h"
#include "device/device.h"
#include "parameter_server/pass_messages.h"
#include "parameter_server/pass_setup.h"
#include "plan/schedule.h"

namespace ckpt {

/// Allocation goes in two steps, with a gather of handles between them. With RingSharing::kPerHost
/// the lowest recipient of a host makes the ring and the board for all of it.
class PassBuffers {
 public:
  /// Allocates what this rank makes. `local_recipients`: the recipients of this host, ascending,
  /// this rank among them.
  static Result<PassBuffers> allocate(const PassSetup& setup, const Plan& plan,
                                      const Schedule& schedule, std::vector<int> local_recipients);
  /// Opens what others made; `ready[i]` is what `recipients[i]` told.
  /// `pulled_streams`: the streams of this host that this rank pulls from.
  Status open(const std::vector<int>& recipients, const std::vector<PassReady>& ready,
              const std::set<StreamKey>& pulled_streams);
  /// Closes what other ranks made (not a ring that is shared), and says so to them.
  void close_opened();
  /// Returns when the others of this host have done so too, or at the deadline: device memory must
  /// not be freed while another process has it open.
  void wait_until_closed(Deadline deadline) const;
  /// Nobody else can open anything any more: called when all ranks and workers of the host have.
  void close_to_others();

  /// The handles to put into PassReady.
  void describe(PassReady& ready) const;
  std::byte* ring() const { return ring_->data(); }
  BufferHandle ring_handle() const { return ring_->handle(); }
  Progress& progress() const { return *progress_; }
  const HostProgressLayout& layout() const { return *layout_; }
  DeviceBuffer* fill_staging() const { return fill_staging_.get(); }
  /// Host memory, whatever the device: every transport reaches it.
  DeviceBuffer* receive_staging() const { return receive_staging_.get(); }
  /// Where the pulled streams lie, this rank's own included.
  const std::map<StreamKey, Staging>& stagings() const { return stagings_; }
  std::uint64_t ring_bytes() const { return ring_->size(); }
  std::uint64_t staging_bytes() const { return fill_staging_ ? fill_staging_->size() : 0; }

 private:
  PassBuffers() = default;
  Result<Staging> open_stream(const StreamKey& key, const PassReady& told);

  Device* device_ = nullptr;
  int rank_ = 0;
  bool makes_shared_ = false;
  bool pulled_by_others_ = false;
  std::uint64_t chunk_bytes_ = 0, cross_chunk_bytes_ = 0;
  std::unique_ptr<HostProgressLayout> layout_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<DeviceBuffer> ring_;
  std::unique_ptr<DeviceBuffer> fill_staging_;
  const std::shared_ptr<Device> host_ = make_host_device();
  std::unique_ptr<DeviceBuffer> receive_staging_;
  std::vector<std::unique_ptr<DeviceBuffer>> opened_;
  std::vector<std::unique_ptr<PinnedRange>> pinned_;  // end before the memory
  std::map<StreamKey, Staging> stagings_;
  std::string progress_name_;
};

}  // namespace ckpt
