#include "collective/nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "collective/testing/fake_nccl.h"
#include "collective/testing/must.h"

namespace ckpt {
namespace {

using testing::fake_nccl;
using testing::FakeNccl;
using testing::must;

thread_local int current_here = 0;  // how often the device is current on this thread
std::atomic<int> calls{0}, calls_without{0};

/// CPU memory that knows on which threads it is current.
class WatchedDevice final : public Device {
 public:
  DeviceKind kind() const override { return host_->kind(); }
  std::string uuid() const override { return host_->uuid(); }
  std::string name() const override { return host_->name(); }
  Result<DeviceMemory> memory() override { return host_->memory(); }
  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t bytes,
                                                 const std::string& name) override {
    return host_->allocate(bytes, name);
  }
  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle& handle) override {
    return host_->open(handle);
  }
  Result<std::unique_ptr<CopyStream>> make_stream() override { return host_->make_stream(); }
  Result<std::unique_ptr<PinnedRange>> pin(std::byte* data, std::uint64_t bytes) override {
    return host_->pin(data, bytes);
  }
  std::unique_ptr<CurrentDevice> make_current() override {
    struct Current final : CurrentDevice {
      Current() { ++current_here; }
      ~Current() override { --current_here; }
    };
    return std::make_unique<Current>();
  }

 private:
  const std::shared_ptr<Device> host_ = make_host_device();
};

const NcclApi& fake() {
  static const auto* const api = new std::shared_ptr<const NcclApi>(fake_nccl());
  return **api;
}

void count() {
  ++calls;
  if (current_here == 0) ++calls_without;
}

// The fake, whose calls that work on a GPU are counted.
std::shared_ptr<const NcclApi> counted_nccl() {
  auto api = std::make_shared<NcclApi>(fake());
  api->comm_init_rank_config = [](NcclHandle* comm, int ranks, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
    count();
    return fake().comm_init_rank_config(comm, ranks, id, rank, config);
  };
  api->comm_finalize = [](NcclHandle comm) { return count(), fake().comm_finalize(comm); };
  api->comm_destroy = [](NcclHandle comm) { return count(), fake().comm_destroy(comm); };
  api->comm_abort = [](NcclHandle comm) { return count(), fake().comm_abort(comm); };
  api->group_start = [] { return count(), fake().group_start(); };
  api->group_end = [] { return count(), fake().group_end(); };
  api->broadcast = [](const void* from, void* to, std::size_t bytes, int type, int root,
                      NcclHandle comm, void* stream) {
    count();
    return fake().broadcast(from, to, bytes, type, root, comm, stream);
  };
  return api;
}

/// A communicator of one rank.
std::unique_ptr<NcclCommunicator> alone(Device& device, AbortSignal& abort) {
  NcclUniqueId id{};
  fake().get_unique_id(&id);
  return must(NcclCommunicator::create(counted_nccl(), id, {0}, 0, device,
                                       Deadline::after_seconds(30), abort));
}

// Each on a thread that never chose a GPU, as lanes and Python's calls are.
template <typename Body>
void elsewhere(Body body) {
  std::thread(body).join();
}

TEST(NcclCommunicatorTest, EveryCallIsMadeWithItsDeviceCurrent) {
  calls = calls_without = 0;
  WatchedDevice device;
  AbortSignal abort;
  std::unique_ptr<NcclCommunicator> communicator, aborted, dropped;
  std::byte data[4] = {};
  const NcclBroadcast one{data, data, sizeof(data), 0};
  elsewhere([&] {
    communicator = alone(device, abort);
    aborted = alone(device, abort);
    dropped = alone(device, abort);
  });
  elsewhere([&] {
    must(communicator->broadcast(std::span(&one, 1), nullptr, Deadline::after_seconds(30), abort));
    must(communicator->check());
  });
  elsewhere([&] { communicator->release(Deadline::after_seconds(30), abort); });
  elsewhere([&] { aborted->abort(); });
  elsewhere([&] { dropped.reset(); });
  EXPECT_EQ(calls, 3 + 3 + 2 + 2);
  EXPECT_EQ(calls_without, 0);
  EXPECT_EQ(current_here, 0);
  communicator.reset();
  aborted.reset();
  EXPECT_EQ(FakeNccl::mistakes(), 0);
}

}  // namespace
}  // namespace ckpt
