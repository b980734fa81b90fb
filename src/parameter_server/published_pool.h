// A pool that others may read: its regions, and the door at which other jobs take leases
// (transport/lease.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/metas.h"
#include "memory/host_pool.h"
#include "transport/lease.h"
#include "transport/transport.h"

namespace ckpt {

/// What a reader finds at a door.
struct DoorWords {
  std::uint64_t epoch = 0;  ///< of the registration
  /// How many bytes from the pool's beginning may be read: an owner that is being filled itself
  /// lets others follow.
  std::atomic<std::uint64_t> filled{0};
};
/// `filled` of a pool that holds everything.
inline constexpr std::uint64_t kWhollyFilled = UINT64_MAX;

/// Any thread. Must go before the pool.
class PublishedPool {
 public:
  struct Terms {
    std::string what;  ///< for the log
    std::uint64_t epoch = 0;
    std::uint64_t filled = kWhollyFilled;
    double reader_patience_seconds = 60;
  };
  /// Registers every segment. A pool without bytes has nothing to offer and no door.
  static Result<std::unique_ptr<PublishedPool>> publish(const HostPool& pool, Transport& transport,
                                                        LeaseTable& leases, Terms terms);
  /// Takes no more readers of other jobs, waits for those that hold a lease, and ends their reads
  /// when its patience is over.
  ~PublishedPool();

  /// Readers that look again see it; those that saw more before may go on with what they saw.
  void set_filled(std::uint64_t bytes) { words_.filled.store(bytes, std::memory_order_release); }
  std::uint64_t filled() const { return words_.filled.load(std::memory_order_acquire); }
  /// The transport descriptor as it is now, regions and door.
  Status describe(InstanceData& data) const;

 private:
  PublishedPool(Transport& transport, LeaseTable& leases, Terms terms);

  Transport& transport_;
  LeaseTable& leases_;
  const Terms terms_;
  DoorWords words_;
  std::vector<PoolRegion> places_;
  std::vector<std::unique_ptr<MemoryRegion>> regions_;
  std::unique_ptr<MemoryRegion> door_;
};

}  // namespace ckpt
