#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include <set>
#include "base/host.h"
#include "base/strings.h"
#include "transport/network/device_filter.h"
#include "transport/network/name_lookup.h"
#include "transport/network/network_choice.h"
#include "transport/network/network_devices.h"
#include "transport/network/own_address.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kDevices = {"mlx5_10", "mlx5_2", "mlx5_0", "mlx5_1", "efa0"};
/// Of the same, and of a second port.
const std::vector<std::string> kPorts = {"mlx5_10:1", "mlx5_2:1", "mlx5_0:1",
                                         "mlx5_1:2",  "mlx5_1:1", "efa0:1"};

std::vector<std::string> filtered(const char* filter) {
  const auto devices = nccl_devices(filter, kPorts);
  EXPECT_TRUE(devices.is_ok()) << devices.status().to_string();
  return devices ? *devices : std::vector<std::string>();
}

TEST(DeviceFilter, HasTheMeaningOfNccl) {
  const auto all =
      ElementsAre("efa0:1", "mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_2:1", "mlx5_10:1");
  EXPECT_THAT(filtered(""), all);
  EXPECT_THAT(filtered(" , "), all);
  EXPECT_THAT(filtered("mlx5"),
              ElementsAre("mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_2:1", "mlx5_10:1"));
  EXPECT_THAT(filtered("mlx5_1"), ElementsAre("mlx5_1:1", "mlx5_1:2", "mlx5_10:1")) << "a prefix";
  EXPECT_THAT(filtered("=mlx5_1"), ElementsAre("mlx5_1:1", "mlx5_1:2"));
  EXPECT_THAT(filtered("=mlx5_2,, mlx5_0 "), ElementsAre("mlx5_2:1", "mlx5_0:1")) << "given order";
  EXPECT_THAT(filtered("^mlx5_1"), ElementsAre("efa0:1", "mlx5_0:1", "mlx5_2:1"));
  EXPECT_THAT(filtered("^=mlx5_1"), ElementsAre("efa0:1", "mlx5_0:1", "mlx5_2:1", "mlx5_10:1"));
  EXPECT_THAT(filtered("mlx5_0,efa,mlx5_0"), ElementsAre("mlx5_0:1", "efa0:1")) << "each once";
}

TEST(DeviceFilter, APortBehindANameMeansThatPortOnly) {
  EXPECT_THAT(filtered("=mlx5_0:1,mlx5_1:2"), ElementsAre("mlx5_0:1", "mlx5_1:2"));
  EXPECT_THAT(filtered("mlx5_1:1"), ElementsAre("mlx5_1:1", "mlx5_10:1")) << "a prefix";
  EXPECT_THAT(filtered("^mlx5:1"), ElementsAre("efa0:1", "mlx5_1:2"));
  EXPECT_THAT(filtered("^=mlx5_1:2,mlx5_0:2"),
              ElementsAre("efa0:1", "mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_10:1"));
  EXPECT_THAT(filtered("=mlx5_0:7,mlx5_2"), ElementsAre("mlx5_2:1")) << "no such port";
  EXPECT_THAT(filtered("=mlx5_1:02"), ElementsAre("mlx5_1:2")) << "a number";
  EXPECT_THAT(filtered("=mlx5_1:2x"), ElementsAre("mlx5_1:2")) << "as far as it is one";
  EXPECT_THAT(filtered("=mlx5_1: 2 "), ElementsAre("mlx5_1:2"));
  EXPECT_THAT(filtered("=mlx5_1:"), ElementsAre("mlx5_1:1", "mlx5_1:2")) << "none given";
  EXPECT_THAT(filtered("=mlx5_1:2:0:3"), ElementsAre("mlx5_1:2")) << "rail and plane";
  EXPECT_THAT(filtered("^=mlx5_1:x,mlx5_0"),
              ElementsAre("efa0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_2:1", "mlx5_10:1"));
}

TEST(DeviceFilter, ItemsWithoutANameCountForNothing) {
  EXPECT_EQ(filtered(":1"), filtered(""));
  EXPECT_EQ(filtered("="), filtered(""));
  EXPECT_EQ(filtered("=:2,"), filtered(""));
  EXPECT_THAT(filtered(":1,=mlx5_0,mlx5_2"), ElementsAre("mlx5_2:1")) << "= is special in front";
  EXPECT_THAT(filtered("^:1,mlx5"), ElementsAre("efa0:1"));
}

TEST(DeviceFilter, TheThirtyThirdItemIsNotRead) {
  std::string many;
  for (int i = 0; i < 31; ++i) many += concat("other", i, ",,");
  EXPECT_THAT(filtered(("=" + many + "mlx5_0,mlx5_2").c_str()), ElementsAre("mlx5_0:1"));
  EXPECT_THAT(filtered(("^" + many + "mlx5,efa").c_str()), ElementsAre("efa0:1"));
}

TEST(DeviceFilter, OneThatLeavesNothingIsAnErrorThatNamesBothSides) {
  for (const char* filter : {"bnxt", "=mlx5", "^mlx5,efa", "=^mlx5_0", "=mlx5_0:7", "mlx5_0:x", "^",
                             "^ , ", "^=", "^:1"}) {
    const auto devices = nccl_devices(filter, kPorts);
    ASSERT_FALSE(devices.is_ok()) << filter;
    EXPECT_EQ(devices.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(devices.status().message(), HasSubstr(filter));
    EXPECT_THAT(devices.status().message(), HasSubstr("mlx5_10"));
  }
  EXPECT_THAT(listed_devices("mlx5_7", kDevices).status().message(), HasSubstr("mlx5_7"));
  EXPECT_FALSE(listed_devices(" , ", kDevices).is_ok());
}

TEST(DeviceFilter, AListKeepsItsOrderAndThereIsALimit) {
  EXPECT_THAT(*listed_devices(" mlx5_10 ,mlx5_2:1,,mlx5_10", kDevices),
              ElementsAre("mlx5_10", "mlx5_2:1"));
  std::vector<std::string> many;
  for (int i = 39; i >= 0; --i) many.push_back(concat("mlx5_", i, ":1"));
  const auto devices = *nccl_devices("mlx5", many);
  ASSERT_EQ(devices.size(), 32u);
  EXPECT_EQ(devices.back(), "mlx5_31:1");
}

TEST(DeviceFilter, PeopleCountSo) {
  EXPECT_TRUE(natural_less("mlx5_2", "mlx5_10"));
  EXPECT_TRUE(natural_less("mlx5_02", "mlx5_10"));
  EXPECT_TRUE(natural_less("mlx4_9", "mlx5_0"));
  EXPECT_FALSE(natural_less("mlx5_10", "mlx5_2"));
  EXPECT_FALSE(natural_less("mlx5_2", "mlx5_2"));
  EXPECT_TRUE(natural_less("mlx5", "mlx5_0"));
}

/// A made-up /sys and /proc.
class FakeHost : public ::testing::Test {
 protected:
  FakeHost() {
    fs::create_directories(root_);
    clear();
  }
  ~FakeHost() override {
    fs::remove_all(root_);
    clear();
  }
  static void clear() {
    for (const char* name :
         {"PS_P2P_STORE_RDMA_DEVICES", "NCCL_IB_HCA", "PS_HOST_IP", "PS_NETWORK_MBIT"}) {
      ::unsetenv(name);
    }
  }

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  void add_rdma(const std::string& name, const std::string& pci, const char* state = "4: ACTIVE") {
    const fs::path folder = fs::path("sys/class/infiniband") / name;
    write(folder / "ports/1/state", state);
    write(folder / "ports/1/rate", "400 Gb/sec (4X NDR)");
    write(fs::path("sys/devices") / pci / "numa_node", "1");
    fs::create_symlink(root_ / "sys/devices" / pci, root_ / folder / "device");
  }
  void add_gpu(const std::string& address, const std::string& pci, const std::string& uuid) {
    write(fs::path("proc/driver/nvidia/gpus") / address / "information",
          "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid);
    fs::create_directories(root_ / "sys/devices" / pci);
    fs::create_directories(root_ / "sys/bus/pci/devices");
    fs::create_symlink(root_ / "sys/devices" / pci, root_ / "sys/bus/pci/devices" / address);
  }
  NetworkRequest request(int local_rank = 0, int local_ranks = 1) const {
    NetworkRequest request;
    request.master_host = "127.0.0.1";
    request.local_rank = local_rank;
    request.local_ranks = local_ranks;
    request.sysfs = sys();
    request.procfs = (root_ / "proc").string();
    return request;
  }
  std::string sys() const { return (root_ / "sys").string(); }

  const fs::path root_ = fs::temp_directory_path() / concat("ckpt-sysfs-", random_id());
};

TEST_F(FakeHost, RdmaDevicesAreReadInNaturalOrder) {
  EXPECT_THAT(rdma_devices(sys()), IsEmpty()) << "no RDMA is no error";
  add_rdma("mlx5_10", "pci0/a");
  add_rdma("mlx5_2", "pci0/b", "1: DOWN");
  const auto devices = rdma_devices(sys());
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "mlx5_2");
  EXPECT_THAT(devices[0].active_ports, IsEmpty());
  EXPECT_EQ(devices[0].mbit, 0u);
  EXPECT_EQ(devices[1].mbit, 400'000u);
  EXPECT_EQ(devices[1].numa_node, 1);
  write("sys/class/net/eth0/speed", "25000");
  write("sys/class/net/veth/speed", "-1");
  EXPECT_EQ(interface_mbit(sys(), "eth0"), 25'000u);
  EXPECT_EQ(interface_mbit(sys(), "veth"), 0u);
  EXPECT_EQ(interface_mbit(sys(), "none"), 0u);
}

TEST_F(FakeHost, TheNearestDeviceServesAGpu) {
  add_rdma("mlx5_0", "pci0000:00/0000:01/0000:02");
  add_rdma("mlx5_1", "pci0000:80/0000:81/0000:82");
  add_gpu("0000:83:00.0", "pci0000:80/0000:81/0000:83", "GPU-b");
  NetworkRequest near = request();
  near.device_uuid = "GPU-b";
  EXPECT_THAT(choose_network(near)->devices, ElementsAre("mlx5_1:1"));
  near.device_uuid = "GPU-unknown";
  EXPECT_THAT(choose_network(near)->devices, ElementsAre("mlx5_0:1", "mlx5_1:1"))
      << "one rank alone has them all";
}

TEST_F(FakeHost, AnyPairOfCountsHasAnAnswer) {
  std::vector<RdmaDevice> devices;
  for (int count = 1; count <= 9; ++count) {
    devices.push_back({concat("mlx5_", count - 1), {1}, 0, "", -1});
    for (int ranks = 1; ranks <= 17; ++ranks) {
      std::vector<int> used(devices.size(), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = devices_of_rank(devices, "", {}, rank, ranks);
        ASSERT_FALSE(own.empty());
        for (const RdmaDevice& device : own) ++used[std::stoul(device.name.substr(5))];
      }
      const auto [least, most] = std::minmax_element(used.begin(), used.end());
      EXPECT_LE(*most - *least, 1) << count << " devices, " << ranks << " ranks";
      EXPECT_GE(*least, 1) << count << " devices, " << ranks << " ranks";
    }
  }
  EXPECT_THAT(devices_of_rank({}, "", {}, 0, 1), IsEmpty());
}

// Two switches, each with GPUs and NICs of its own, in every number.
TEST_F(FakeHost, RanksOnGpusShareTheNearestDevicesEvenly) {
  for (int nics = 1; nics <= 5; ++nics) {
    std::vector<RdmaDevice> devices;
    for (int i = 0; i < 2 * nics; ++i) {
      devices.push_back({concat("mlx5_", i), {1}, 0, concat("pci", i / nics, "/nic", i), -1});
    }
    for (int gpus = 1; gpus <= 4; ++gpus) {  // of a switch
      std::vector<std::string> paths;
      for (int i = 0; i < 2 * gpus; ++i) paths.push_back(concat("pci", i / gpus, "/gpu", i));
      for (const int turns : {1, 2, 3}) {
        const int ranks = turns * 2 * gpus;
        std::vector<int> used(devices.size(), 0);
        std::set<std::vector<std::string>> shares;
        for (int rank = 0; rank < ranks; ++rank) {
          const int gpu = rank % (2 * gpus);
          std::vector<std::string> names;
          for (const RdmaDevice& device :
               devices_of_rank(devices, paths[static_cast<std::size_t>(gpu)], paths, rank, ranks)) {
            names.push_back(device.name);
            const int number = std::stoi(device.name.substr(5));
            EXPECT_EQ(number / nics, gpu / gpus) << "of its own switch";
            ++used[static_cast<std::size_t>(number)];
          }
          ASSERT_FALSE(names.empty());
          shares.insert(names);
        }
        const auto [least, most] = std::minmax_element(used.begin(), used.end());
        EXPECT_LE(*most - *least, 1) << nics << " NICs, " << gpus << " GPUs, " << ranks << " ranks";
        EXPECT_GE(*least, 1) << nics << " NICs, " << gpus << " GPUs, " << ranks << " ranks";
        std::size_t named = 0;
        for (const auto& share : shares) named += share.size();
        EXPECT_EQ(named, devices.size()) << "equal or apart: the plan's devices are these lists";
      }
    }
  }
}

TEST_F(FakeHost, FewerRanksThanGpusStillHaveDevicesOfTheirOwn) {
  for (const char* nic : {"0", "1", "2", "3"}) {
    add_rdma(concat("mlx5_", nic), concat("pci0/nic", nic));
  }
  for (const char* gpu : {"0", "1", "2", "3"}) {
    add_gpu(concat("0000:8", gpu, ":00.0"), concat("pci0/gpu", gpu), concat("GPU-", gpu));
  }
  const auto devices = [&](const char* gpu, int rank, int ranks) {
    NetworkRequest of_rank = request(rank, ranks);
    of_rank.device_uuid = gpu;
    return choose_network(of_rank).value();
  };
  EXPECT_THAT(devices("GPU-2", 0, 1).devices,
              ElementsAre("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"));
  EXPECT_EQ(devices("GPU-2", 0, 1).mbit, 1'600'000u) << "for the plan";
  EXPECT_THAT(devices("GPU-0", 0, 2).devices, ElementsAre("mlx5_0:1", "mlx5_1:1"));
  EXPECT_THAT(devices("GPU-3", 1, 2).devices, ElementsAre("mlx5_2:1", "mlx5_3:1"));
  EXPECT_THAT(devices("GPU-3", 3, 4).devices, ElementsAre("mlx5_3:1"));
  EXPECT_THAT(devices("GPU-3", 7, 8).devices, ElementsAre("mlx5_3:1"));
}

TEST_F(FakeHost, FiltersChooseAndPortsThatAreDownAreLeftOut) {
  add_rdma("mlx5_0", "pci0/a", "1: DOWN");
  add_rdma("mlx5_1", "pci0/b");
  EXPECT_THAT(choose_network(request())->devices, ElementsAre("mlx5_1:1"));
  EXPECT_EQ(choose_network(request())->mbit, 400'000u);
  ::setenv("NCCL_IB_HCA", "mlx5", 1);
  EXPECT_THAT(choose_network(request())->devices, ElementsAre("mlx5_1:1"));
  ::setenv("NCCL_IB_HCA", "=mlx5_0", 1);
  EXPECT_THAT(choose_network(request())->rdma_filter.message(), HasSubstr("NCCL_IB_HCA==mlx5_0"));
  ::setenv("PS_P2P_STORE_RDMA_DEVICES", "mlx5_1:2", 1);
  EXPECT_THAT(choose_network(request())->devices, ElementsAre("mlx5_1:2")) << "wins";
  EXPECT_TRUE(choose_network(request())->rdma);
  ::setenv("PS_NETWORK_MBIT", "1000", 1);
  EXPECT_EQ(choose_network(request())->mbit, 1000u);
  ::setenv("PS_P2P_STORE_RDMA_DEVICES", "mlx5_9", 1);
  EXPECT_THAT(choose_network(request())->rdma_filter.message(), HasSubstr("mlx5_9"));
}

TEST_F(FakeHost, AFilterThatLeavesNoDeviceLeavesTcp) {
  ::setenv("PS_P2P_STORE_RDMA_DEVICES", "mlx5_9", 1);
  auto choice = choose_network(request());
  ASSERT_TRUE(choice.is_ok()) << choice.status().to_string();
  EXPECT_FALSE(choice->rdma);
  EXPECT_EQ(choice->limit, "") << "there is no RDMA here that it could use instead";
  EXPECT_THAT(choice->devices, ElementsAre(choice->address.interface));
  EXPECT_THAT(choice->text, HasSubstr("mlx5_9"));
  add_rdma("mlx5_0", "pci0/a");
  write("sys/class/net/eth7/flags", "0x1003");
  choice = choose_network(request());
  ASSERT_TRUE(choice.is_ok()) << choice.status().to_string();
  EXPECT_FALSE(choice->rdma);
  EXPECT_EQ(choice->limit, "eth7") << "nobody wanted mlx5_0";
  EXPECT_THAT(choice->rdma_filter.message(), HasSubstr("mlx5_0"));
}

TEST_F(FakeHost, WithoutRdmaTheFilterOfNcclCountsForNothing) {
  ::setenv("NCCL_IB_HCA", "mlx5", 1);
  const auto choice = choose_network(request());
  ASSERT_TRUE(choice.is_ok()) << choice.status().to_string();
  EXPECT_FALSE(choice->rdma);
  EXPECT_THAT(choice->devices, ElementsAre(choice->address.interface));
  EXPECT_EQ(choice->limit, "") << "nobody has named an interface";
}

TEST_F(FakeHost, NeitherDoesItWhereNoPortIsActive) {
  add_rdma("mlx5_0", "pci0/a", "1: DOWN");
  ::setenv("NCCL_IB_HCA", "mlx5", 1);
  const auto choice = choose_network(request());
  ASSERT_TRUE(choice.is_ok()) << choice.status().to_string();
  EXPECT_FALSE(choice->rdma);
}

TEST_F(FakeHost, BesideRdmaDevicesOtherHostsFindAnInterface) {
  add_rdma("mlx5_0", "pci0/a");
  write("sys/class/net/lo/flags", "0x9");
  write("sys/class/net/eth1/flags", "0x1003");
  write("sys/class/net/eth0/flags", "0x1003");
  write("sys/class/net/eth2/flags", "0x1002");  // down
  write("sys/class/net/bonding_masters", "no interface");
  EXPECT_EQ(choose_network(request())->limit, "mlx5_0:1,eth0,eth1")
      << "whatever routes to the hub, which is on this host";
  ::setenv("PS_HOST_IP", "127.0.0.1", 1);
  EXPECT_EQ(choose_network(request())->limit, "mlx5_0:1,lo") << "the user has named it";
}

TEST_F(FakeHost, AJobOfOneHostIsReachedAtWhatLeadsOutward) {
  const InterfaceAddress lo{"lo", "127.0.0.1", true, false};
  const InterfaceAddress lo6{"lo", "::1", true, false};
  const InterfaceAddress scoped{"eth0", "fe80::1", false, true};
  const InterfaceAddress eth0{"eth0", "10.0.0.7", false, false};
  const InterfaceAddress eth1{"eth1", "10.1.0.7", false, false};
  const std::vector<InterfaceAddress> both = {lo, lo6, scoped, eth0, eth1};
  EXPECT_EQ(reachable_address(both, "10.1.0.7")->interface, "eth1") << "the default route";
  EXPECT_EQ(reachable_address(both, "")->interface, "eth0") << "without one";
  EXPECT_EQ(reachable_address(both, "127.0.0.1")->address, "10.0.0.7");
  EXPECT_EQ(reachable_address({lo, lo6, scoped}, ""), nullptr);
  EXPECT_EQ(reachable_address({}, ""), nullptr);
}

TEST_F(FakeHost, TheSpeedIsThatOfTheInterfaceThatLeadsOutward) {
  const auto own = own_address("", "127.0.0.1");
  ASSERT_TRUE(own.is_ok()) << own.status().to_string();
  if (own->interface == "lo") GTEST_SKIP() << "this host has the loopback interface only";
  write(fs::path("sys/class/net") / own->interface / "speed", "25000");
  const auto choice = choose_network(request());
  EXPECT_FALSE(choice->address.address.starts_with("127."));
  EXPECT_THAT(choice->devices, ElementsAre(own->interface));
  EXPECT_EQ(choice->mbit, 25'000u);
  const auto routed = own_address("", own->address);
  EXPECT_EQ(routed->address, own->address);
  EXPECT_EQ(routed->interface, own->interface);
}

TEST_F(FakeHost, AddressesAreGivenOrFollowTheRoute) {
  EXPECT_EQ(own_address("lo", "")->interface, "lo");
  EXPECT_EQ(own_address("127.0.0.1", "no.such.host.invalid")->reason, "given");
  ::setenv("PS_HOST_IP", "127.0.0.1", 1);
  EXPECT_EQ(own_address("", "10.0.0.1")->reason, "PS_HOST_IP");
  EXPECT_EQ(choose_network(request())->limit, "lo") << "the user has named it";
  const auto wrong = own_address("203.0.113.9", "");
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("127.0.0.1"));
  ::unsetenv("PS_HOST_IP");
  const auto none = own_address("", "no.such.host.invalid");
  ASSERT_TRUE(none.is_ok()) << "a host without a route runs single-host jobs";
  EXPECT_EQ(none->address, "");
}

TEST(OwnAddress, ThatOtherHostsCannotConnectToIsNotTaken) {
  const std::vector<InterfaceAddress> own = {{"eth0", "fe80::1", false, true},
                                             {"eth0", "fd00::7", false, false},
                                             {"eth0", "10.0.0.7", false, false},
                                             {"eth1", "fe80::2", false, true}};
  EXPECT_EQ(named_address(own, "eth0", "given")->address, "fd00::7");
  EXPECT_EQ(named_address(own, "10.0.0.7", "given")->interface, "eth0");
  EXPECT_EQ(named_address(own, "[fd00:0::7]", "given")->address, "fd00::7");
  for (const char* wanted : {"eth1", "fe80::1"}) {
    const auto refused = named_address(own, wanted, "PS_HOST_IP");
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("link-local"));
    EXPECT_THAT(refused.status().message(), HasSubstr(wanted));
    EXPECT_THAT(refused.status().message(), HasSubstr("10.0.0.7")) << "what there is";
  }
}

TEST(NameLookup, AResolverThatHangsIsNotWaitedFor) {
  const auto hung = std::make_shared<std::promise<void>>();
  const auto asked = std::make_shared<std::atomic<int>>(0);
  const NameLookup lookup = [hung, asked, until = hung->get_future().share()](const std::string&) {
    asked->fetch_add(1);
    until.wait();
    return look_up("127.0.0.1");
  };
  EXPECT_EQ(addresses_of("127.0.0.1", std::chrono::milliseconds(0), lookup).size(), 1u);
  EXPECT_EQ(addresses_of("::1", std::chrono::milliseconds(0), lookup).size(), 1u);
  EXPECT_TRUE(addresses_of("", std::chrono::hours(1), lookup).empty());
  EXPECT_EQ(asked->load(), 0) << "digits need no resolver";
  EXPECT_TRUE(addresses_of("master", std::chrono::milliseconds(1), lookup).empty());
  hung->set_value();
  EXPECT_EQ(addresses_of("master", std::chrono::minutes(1), lookup).size(), 1u);
}

TEST_F(FakeHost, AddressesOfVersionSix) {
  const auto own = own_address("::1", "");
  if (!own.is_ok()) GTEST_SKIP() << "this host has no IPv6 loopback";
  EXPECT_EQ(own->interface, "lo");
  EXPECT_EQ(own_address("[0:0:0:0:0:0:0:1]", "")->address, "::1");
  EXPECT_NE(own_address("", "::1")->address, "");
}

}  // namespace
}  // namespace ckpt
