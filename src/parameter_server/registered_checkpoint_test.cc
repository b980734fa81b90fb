// What a registration does when the network device does not take its memory.
#include "parameter_server/registered_checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/host.h"
#include "base/strings.h"
#include "device/device.h"
#include "transport/callback/callback_transport.h"

namespace ckpt {
namespace {

/// A device that takes so many regions.
class FullDevice {
 public:
  explicit FullDevice(int room) : room_(room) {
    TransportCallbacks callbacks;
    callbacks.address = "nowhere";
    callbacks.register_memory = [this](std::uint64_t region, void*, std::uint64_t) -> Status {
      if (room_-- <= 0) return resource_exhausted("no more lockable memory");
      registered.insert(region);
      return Status();
    };
    callbacks.deregister_memory = [this](std::uint64_t region, void*, Deadline) {
      registered.erase(region);
    };
    callbacks.read = [](const TransportCallbacks::Remote&,
                        std::span<const TransportCallbacks::Piece>, Deadline,
                        AbortSignal&) -> Status { return unsupported("nobody reads here"); };
    transport = make_callback_transport("rank 0", std::move(callbacks));
  }

  std::set<std::uint64_t> registered;
  std::unique_ptr<Transport> transport;

 private:
  int room_;
};

TEST(RegisteredCheckpoint, ARankWhoseMemoryCannotBeReadServesItsHostAllTheSame) {
  const std::shared_ptr<Device> device = make_host_device();
  // Two segments and the door: the device refuses the first, the second, the third, none.
  for (int room = 0; room <= 3; ++room) {
    const std::string path = concat("/dev/shm/ckpt-registration-", random_id(), ".bin");
    std::ofstream(path, std::ios::binary) << std::string(8192, 'x');
    const std::string bytes(4096, 'y');
    Registration part;
    part.files = {{*make_tensor_info("file", DType::kU8, {8192}), path, 0}};
    part.shared_memory_files = SharedMemoryFiles::kUseAndRemove;
    part.tensors = {{*make_tensor_info("memory", DType::kU8, {4096}),
                     reinterpret_cast<const std::byte*>(bytes.data())}};
    FullDevice network(room);
    LeaseTable leases;
    SharedPool shared_pool;
    PoolReclaimer reclaimer;
    const RegistrationContext context{
        *device, network.transport.get(), leases, shared_pool, reclaimer, 0, 7, "host", {}, 1, 30,
        1};
    auto checkpoint = RegisteredCheckpoint::create("c", part, context);
    ASSERT_TRUE(checkpoint.is_ok()) << checkpoint.status().to_string();
    EXPECT_TRUE(std::filesystem::exists(path)) << "another rank may need it";
    (*checkpoint)->remove_files();
    EXPECT_FALSE(std::filesystem::exists(path)) << "used in place";
    const auto data = (*checkpoint)->instance_data();
    ASSERT_TRUE(data.is_ok()) << data.status().to_string();
    EXPECT_EQ(data->digests.size(), 2u);
    EXPECT_EQ(data->transport_descriptor.empty(), room < 3) << room;
    EXPECT_EQ(data->pool_regions.empty(), room < 3) << room;
    EXPECT_EQ(data->door_region == 0, room < 3) << room;
    EXPECT_EQ(network.registered.size(), room < 3 ? 0u : 3u) << "no half of a registration stays";
    checkpoint->reset();
    EXPECT_TRUE(network.registered.empty());
  }
}

TEST(RegisteredCheckpoint, ARegistrationThatIsGivenUpLeavesNothingBehind) {
  const std::shared_ptr<Device> device = make_host_device();
  const std::string bytes(4096, 'y');
  Registration part;
  part.tensors = {{*make_tensor_info("memory", DType::kU8, {4096}),
                   reinterpret_cast<const std::byte*>(bytes.data())}};
  FullDevice network(3);
  LeaseTable leases;
  SharedPool shared_pool;
  PoolReclaimer reclaimer;
  const RegistrationContext context{
      *device, network.transport.get(), leases, shared_pool, reclaimer, 0, 7, "host", {}, 1, 30, 1};
  AbortSignal abort;
  abort.raise(aborted("interrupted by the user"));
  const auto checkpoint = RegisteredCheckpoint::create("c", part, context, &abort);
  EXPECT_EQ(checkpoint.status().message(), "interrupted by the user");
  EXPECT_TRUE(network.registered.empty());
}

}  // namespace
}  // namespace ckpt
