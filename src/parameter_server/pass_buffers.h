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

namespace ckpt {

/// Allocation goes in two steps, with a gather of handles between them. With RingSharing::kPerHost
/// the lowest recipient of a host makes the ring and the board for all of it. What an earlier pass
/// has left is used again where it is large enough, and opened memory where its owner uses it
/// again.
class PassBuffers {
 public:
  /// Allocates what this rank makes. `local_recipients`: the recipients of this host, ascending,
  /// this rank among them; `spread_recipients`: PlannedPass. `kept`: of a pass of the same
  /// recipients. `keeps`: of this one it will be.
  static Result<PassBuffers> allocate(const PassSetup& setup, const Plan& plan,
                                      const Schedule& schedule, std::vector<int> local_recipients,
                                      std::vector<int> spread_recipients,
                                      std::optional<KeptSet> kept, bool keeps);
  /// Opens what others made; `ready[i]` is what `recipients[i]` told.
  /// `pulled_streams`: the streams of this host that this rank pulls from.
  Status open(const std::vector<int>& recipients, const std::vector<PassReady>& ready,
              const std::set<StreamKey>& pulled_streams);
  /// All recipients of the host have opened what they use in this pass, and closed what they do
  /// not.
  void opened_everywhere();
  /// Closes what other ranks made (not a ring that is shared), and says so to them.
  void close_opened();
  /// Returns when the others of this host have done so too, or at the deadline: device memory must
  /// not be freed while another process has it open.
  void wait_until_closed(Deadline deadline) const;
  /// Nobody else can open anything any more, unless it is kept: called when all ranks and workers
  /// of the host have.
  void close_to_others();
  /// What is kept; nothing else is to be done with this object then.
  KeptSet leave();

  /// The handles to put into PassReady.
  void describe(PassReady& ready) const;
  std::byte* ring() const { return memory_.ring->data(); }
  BufferHandle ring_handle() const { return memory_.ring->handle(); }
  Progress& progress() const { return *board_.progress; }
  const HostProgressLayout& layout() const { return *board_.layout; }
  DeviceBuffer* fill_staging() const { return memory_.fill_staging.get(); }
  /// Host memory, whatever the device: every transport reaches it.
  DeviceBuffer* receive_staging() const { return memory_.receive_staging.get(); }
  /// Where the pulled streams lie, this rank's own included.
  const std::map<StreamKey, Staging>& stagings() const { return stagings_; }
  std::uint64_t ring_bytes() const { return memory_.ring->size(); }
  std::uint64_t staging_bytes() const { return memory_.bytes() - ring_bytes(); }
  /// Of ring and staging, what this pass allocated: not the ring of another rank, nor what was
  /// kept.
  std::uint64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  PassBuffers() = default;
  Status make_board(bool alone, std::string name);
  Result<Staging> open_stream(const StreamKey& key, const PassReady& told);
  Result<DeviceBuffer*> open_or_reuse(Device& device, const BufferHandle& handle, int owner,
                                      bool pin);

  Device* device_ = nullptr;
  bool makes_shared_ = false;
  bool pulled_by_others_ = false;
  bool keeps_ = false;
  std::uint64_t chunk_bytes_ = 0, cross_chunk_bytes_ = 0;
  std::uint64_t allocated_bytes_ = 0;
  const std::shared_ptr<Device> host_ = make_host_device();
  PassBoard board_;
  PassMemory memory_;
  std::map<StreamKey, Staging> stagings_;
  std::string progress_name_;
  // Of the pass before, until opened_everywhere(): what it had open that nobody has asked for yet,
  // staging of another size, which others may have open, and the board on which they say when they
  // have not.
  std::vector<PassMemory::Opened> opened_before_;
  std::unique_ptr<DeviceBuffer> fill_staging_before_;
  PassBoard board_before_;
};

}  // namespace ckpt
