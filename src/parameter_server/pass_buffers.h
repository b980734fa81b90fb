// The memory of one pass on one rank: ring, staging, the progress board of its host, and what it
// opens of others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collective/host_progress.h"
#include "collective/peer/peer_spread.h"
#include "device/device.h"
#include "parameter_server/kept_buffers.h"
#include "parameter_server/pass_messages.h"
#include "parameter_server/pass_setup.h"
#include "plan/schedule.h"
#include "transport/transport.h"

namespace ckpt {

/// Allocation goes in two steps, with a gather of handles between them. With RingSharing::kPerHost
/// the lowest recipient of a host makes the ring and the board for all of it. What an earlier pass
/// has left is used again where it is large enough, and opened memory where its owner uses it
/// again.
class PassBuffers {
 public:
  /// `local_recipients`: the recipients of this host, ascending, this rank among them;
  /// `spread_recipients`: PlannedPass. `kept`: of a pass of the same recipients. `keeps`: of this
  /// one it will be.
  PassBuffers(const PassSetup& setup, const Schedule& schedule, std::vector<int> local_recipients,
              std::vector<int> spread_recipients, std::optional<PassMemory> kept, bool keeps);
  /// Allocates what this rank makes. After a failure others may have open what was kept.
  Status allocate(const PassSetup& setup, const Plan& plan, const Schedule& schedule);
  /// Opens what others made; `ready[i]` is what `recipients[i]` told.
  /// `pulled_streams`: the streams of this host that this rank pulls from.
  Status open(const std::vector<int>& recipients, const std::vector<PassReady>& ready,
              const std::set<StreamKey>& pulled_streams);
  /// All recipients of the host have opened what they use in this pass, and closed what they do
  /// not.
  void opened_everywhere();
  /// Closes what other ranks made (not a ring that is shared).
  void close_opened();
  /// Whether others of this host have memory of this rank open: device memory must not be freed
  /// before they have closed it. From now on they do not open it.
  bool in_use();
  /// Nobody else can open anything any more, unless it is kept: called when all ranks and workers
  /// of the host have.
  void close_to_others();
  /// What is kept; nothing else is to be done with this object then.
  PassMemory leave();

  /// The handles to put into PassReady.
  void describe(PassReady& ready) const;
  std::byte* ring() const { return memory_.ring->data(); }
  BufferHandle ring_handle() const { return memory_.ring->handle(); }
  Progress& progress() const { return *progress_; }
  const HostProgressLayout& layout() const { return *layout_; }
  DeviceBuffer* fill_staging() const { return memory_.fill_staging.get(); }
  DeviceBuffer* receive_staging() const { return memory_.receive_staging.get(); }
  /// The transport writes what it reads straight into memory of the device; nobody of another host
  /// takes anything from there. Else it is host memory, which every transport reaches.
  bool receives_on_device() const { return memory_.receives_on_device; }
  /// Where the pulled streams lie, this rank's own included.
  const std::map<StreamKey, Staging>& stagings() const { return stagings_; }
  std::uint64_t ring_bytes() const { return memory_.ring->size(); }
  std::uint64_t staging_bytes() const { return memory_.bytes() - ring_bytes(); }
  /// Of ring and staging, what this pass allocated: not the ring of another rank, nor what was
  /// kept.
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  Status make_board(std::string name);
  Status make_receive_staging(const PassSetup& setup, const Schedule& schedule, std::string name);
  Status make_receive_staging_on_device(const PassSetup& setup, std::uint64_t bytes,
                                        const std::string& name);
  Result<Staging> open_stream(const StreamKey& key, const PassReady& told);
  Result<DeviceBuffer*> open_or_reuse(Device& device, const BufferHandle& handle,
                                      const std::string& guard, int owner, bool pin);

  Device* device_ = nullptr;
  bool makes_shared_ = false;
  bool alone_ = false;  // on its host
  bool keeps_ = false;
  std::uint64_t chunk_bytes_ = 0, cross_chunk_bytes_ = 0;
  std::uint64_t allocated_bytes_ = 0;
  const std::shared_ptr<Device> host_ = make_host_device();
  int rank_ = 0;
  std::unique_ptr<HostProgressLayout> layout_;
  std::unique_ptr<Progress> progress_;  // null until it is opened
  std::string progress_name_;
  PassMemory memory_;
  std::unique_ptr<Destination> destination_;  // the receive staging; ends before it
  std::map<StreamKey, Staging> stagings_;
  // Of the pass before, until opened_everywhere(): what it had open that nobody has asked for yet,
  // and staging of another size, which others may have open.
  std::vector<PassMemory::Opened> opened_before_;
  std::optional<MemoryGuard> guard_before_;
  std::unique_ptr<DeviceBuffer> fill_staging_before_, receive_staging_before_;
};

}  // namespace ckpt
