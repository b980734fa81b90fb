// What every device promises (device.h), written once and run for each of them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/host.h"
#include "base/shared_memory.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "device/cuda/driver.h"
#include "device/device.h"

namespace ckpt {
namespace {

Result<std::shared_ptr<Device>> make_device(DeviceKind kind) {
  if (kind == DeviceKind::kHost) return make_host_device(3);
  return make_cuda_device(0);
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) {
    seed = seed * 1664525 + 1013904223;
    b = std::byte(seed >> 24);
  }
  return data;
}

constexpr std::size_t kSharedBytes = (1 << 20) + 4096;

std::string to_hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    text += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The other process: opens the buffer of `arguments`, expects pattern 1 in it and leaves pattern 2.
Status open_as_other_process(char** arguments) {
  const auto kind = static_cast<DeviceKind>(std::stoi(arguments[0]));
  const BufferHandle handle{.kind = kind,
                            .bytes = std::stoull(arguments[1]),
                            .shared_memory = arguments[2],
                            .ipc = from_hex(arguments[3]),
                            .device_uuid = arguments[4]};
  CKPT_ASSIGN_OR_RETURN(const auto device, make_device(kind));
  CKPT_ASSIGN_OR_RETURN(const auto buffer, device->open(handle));
  CKPT_ASSIGN_OR_RETURN(const auto stream, device->make_stream());
  AbortSignal abort;
  std::vector<std::byte> seen(kSharedBytes);
  const std::vector<std::byte> answer = pattern(kSharedBytes, 2);
  CKPT_RETURN_IF_ERROR(stream->copy(seen.data(), buffer->data(), kSharedBytes));
  CKPT_RETURN_IF_ERROR(stream->copy(buffer->data(), answer.data(), kSharedBytes));
  CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
  CKPT_RETURN_IF_ERROR(stream->wait(ticket, Deadline::after_seconds(20), abort));
  return seen == pattern(kSharedBytes, 1) ? Status::ok() : data_loss("other bytes than written");
}

// Runs open_as_other_process in a fresh process of this program; its exit status is the Status'
// code.
StatusCode open_in_child(const BufferHandle& handle) {
  std::vector<std::string> words = {"device_contract_test",
                                    "--open",
                                    concat(static_cast<int>(handle.kind)),
                                    concat(handle.bytes),
                                    handle.shared_memory,
                                    to_hex(handle.ipc),
                                    handle.device_uuid};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return static_cast<StatusCode>(WEXITSTATUS(status));
}

class DeviceContract : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    auto device = make_device(GetParam());
    if (!device.is_ok()) GTEST_SKIP() << device.status().to_string();
    device_ = *device;
    stream_ = *device_->make_stream();
  }

  std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) {
    auto buffer = device_->allocate(bytes, concat("ckpt-device-test-", random_id()));
    EXPECT_TRUE(buffer.is_ok()) << buffer.status().to_string();
    return std::move(buffer).value();
  }

  void finish() {
    auto ticket = stream_->mark();
    ASSERT_TRUE(ticket.is_ok()) << ticket.status().to_string();
    const Status status = stream_->wait(*ticket, Deadline::after_seconds(20), abort_);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_TRUE(*stream_->reached(*ticket));
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<CopyStream> stream_;
  AbortSignal abort_;
};

TEST_P(DeviceContract, SaysWhatItIs) {
  EXPECT_EQ(device_->kind(), GetParam());
  EXPECT_FALSE(device_->name().empty());
  const auto memory = device_->memory();
  ASSERT_TRUE(memory.is_ok()) << memory.status().to_string();
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
  if (GetParam() == DeviceKind::kHost) {
    EXPECT_EQ(device_->uuid(), "");
  } else {
    EXPECT_TRUE(device_->uuid().starts_with("GPU-"));
    EXPECT_EQ(device_->uuid().size(), 40u);
  }
}

TEST_P(DeviceContract, RefusesSizesThatCannotBe) {
  EXPECT_EQ(device_->allocate(0, "ckpt-device-test-none").status().code(),
            StatusCode::kInvalidArgument);
  const auto huge = device_->allocate(1ull << 60, concat("ckpt-device-test-", random_id()));
  EXPECT_EQ(huge.status().code(), StatusCode::kResourceExhausted) << huge.status().to_string();
}

TEST_P(DeviceContract, CopiesThereAndBack) {
  for (const std::size_t bytes : {0u, 1u, 255u, 4097u, (3u << 20) + 5, (33u << 20) + 1}) {
    const auto buffer = allocate(bytes + 1);
    const std::vector<std::byte> out = pattern(bytes, 7);
    std::vector<std::byte> back(bytes + 1, std::byte(0x5A));
    ASSERT_TRUE(stream_->copy(buffer->data() + 1, out.data(), bytes).is_ok());
    ASSERT_TRUE(stream_->copy(back.data(), buffer->data() + 1, bytes).is_ok());
    finish();
    EXPECT_TRUE(std::equal(out.begin(), out.end(), back.begin())) << bytes;
    EXPECT_EQ(back.back(), std::byte(0x5A)) << bytes;
  }
}

TEST_P(DeviceContract, CopiesFromPinnedMemoryAndOnTheDevice) {
  std::vector<std::byte> out = pattern(8 << 20, 8);
  std::vector<std::byte> back(out.size());
  for (int round = 0; round < 2; ++round) {  // what was unpinned can be pinned again
    auto pin = device_->pin(out.data(), out.size());
    ASSERT_TRUE(pin.is_ok()) << pin.status().to_string();
    const auto first = allocate(out.size());
    const auto second = allocate(out.size());
    ASSERT_TRUE(stream_->copy(first->data(), out.data(), out.size()).is_ok());
    ASSERT_TRUE(stream_->copy(second->data(), first->data(), out.size()).is_ok());
    ASSERT_TRUE(stream_->copy(back.data(), second->data(), out.size()).is_ok());
    finish();
    EXPECT_TRUE(out == back);
  }
}

TEST_P(DeviceContract, DigestSumsAreThoseOfTheProcessor) {
  constexpr std::size_t kBytes = (9 << 20) + 256;
  const std::vector<std::byte> data = pattern(kBytes, 9);
  const auto buffer = allocate(kBytes);
  ASSERT_TRUE(stream_->copy(buffer->data(), data.data(), kBytes).is_ok());
  std::vector<DigestRequest> requests;
  std::vector<std::uint64_t> expected;
  for (const std::size_t begin : {0u, 256u, 8u, 1u, 7u, 16u}) {
    for (const std::size_t bytes :
         {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 4096u, (1u << 20) + 3, (9u << 20)}) {
      requests.push_back({buffer->data() + begin, bytes});
      expected.push_back(digest_sum(data.data() + begin, bytes, 0));
    }
  }
  std::vector<std::uint64_t> sums(requests.size(), 1);
  ASSERT_TRUE(stream_->digest(requests, sums.data()).is_ok());
  ASSERT_TRUE(stream_->digest({}, sums.data()).is_ok());
  finish();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], expected[i])
        << requests[i].bytes << " bytes at " << requests[i].data - buffer->data();
  }
}

TEST_P(DeviceContract, DigestsManyTensorsInOneCall) {
  constexpr std::size_t kCount = 5000;
  constexpr std::size_t kStep = 512;
  const std::vector<std::byte> data = pattern(kCount * kStep, 10);
  const auto buffer = allocate(data.size());
  ASSERT_TRUE(stream_->copy(buffer->data(), data.data(), data.size()).is_ok());
  std::vector<DigestRequest> requests;
  for (std::size_t i = 0; i < kCount; ++i) {
    requests.push_back({buffer->data() + i * kStep, 1 + i % kStep});
  }
  std::vector<std::uint64_t> sums(kCount);
  ASSERT_TRUE(stream_->digest(requests, sums.data()).is_ok());
  finish();
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(sums[i], digest_sum(data.data() + i * kStep, requests[i].bytes, 0)) << i;
  }
}

TEST_P(DeviceContract, TicketsAreReachedInOrder) {
  const std::vector<std::byte> data = pattern(1 << 20, 11);
  const auto buffer = allocate(data.size());
  std::vector<CopyStream::Ticket> tickets;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream_->copy(buffer->data(), data.data(), data.size()).is_ok());
    tickets.push_back(*stream_->mark());
  }
  ASSERT_TRUE(stream_->wait(tickets.back(), Deadline::after_seconds(20), abort_).is_ok());
  for (const CopyStream::Ticket ticket : tickets) EXPECT_TRUE(*stream_->reached(ticket));
  EXPECT_TRUE(std::is_sorted(tickets.begin(), tickets.end()));
  EXPECT_EQ(stream_->reached(tickets.back() + 1).status().code(), StatusCode::kInvalidArgument);
  // What has been reached is a success, whatever happened since.
  abort_.raise(aborted("test"));
  EXPECT_TRUE(stream_->wait(tickets.back(), Deadline::after_seconds(0), abort_).is_ok());
}

TEST_P(DeviceContract, AnotherProcessReadsAndWritesTheSameBytes) {
  const auto buffer = allocate(kSharedBytes);
  const std::vector<std::byte> data = pattern(kSharedBytes, 1);
  ASSERT_TRUE(stream_->copy(buffer->data(), data.data(), data.size()).is_ok());
  finish();
  EXPECT_EQ(buffer->handle().bytes, kSharedBytes);
  ASSERT_EQ(open_in_child(buffer->handle()), StatusCode::kOk);
  std::vector<std::byte> back(kSharedBytes);
  ASSERT_TRUE(stream_->copy(back.data(), buffer->data(), back.size()).is_ok());
  finish();
  EXPECT_TRUE(back == pattern(kSharedBytes, 2));
}

TEST_P(DeviceContract, AStreamLeavesWhatItWasMadeOfToTheNext) {
  const auto buffer = allocate(kSharedBytes);
  const std::vector<std::byte> data = pattern(kSharedBytes, 1);
  const auto use_one = [&] {
    stream_ = *device_->make_stream();
    ASSERT_TRUE(stream_->copy(buffer->data(), data.data(), data.size()).is_ok());
    std::uint64_t sum = 0;
    ASSERT_TRUE(stream_->digest({{buffer->data(), data.size()}}, &sum).is_ok());
    finish();
    EXPECT_EQ(sum, digest_sum(data.data(), data.size(), 0));
    stream_.reset();
  };
  use_one();
  use_one();  // the fixture's own stream had made no digest
  const std::uint64_t made = device_->streams_made();
  EXPECT_GT(made, 0u);
  for (int i = 0; i < 5; ++i) use_one();
  EXPECT_EQ(device_->streams_made(), made);
  // Tickets count from the beginning again.
  stream_ = *device_->make_stream();
  EXPECT_EQ(stream_->reached(1).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(DeviceContract, RefusesHandlesOfOtherDevices) {
  BufferHandle handle;
  handle.kind = GetParam() == DeviceKind::kHost ? DeviceKind::kCuda : DeviceKind::kHost;
  handle.bytes = 4096;
  EXPECT_EQ(device_->open(handle).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(DeviceContract, EveryThreadMayUseIt) {
  std::vector<std::thread> threads;
  std::vector<Status> outcomes(4);
  for (std::size_t t = 0; t < outcomes.size(); ++t) {
    threads.emplace_back([&, t] {
      outcomes[t] = [&]() -> Status {
        CKPT_ASSIGN_OR_RETURN(const auto stream, device_->make_stream());
        CKPT_ASSIGN_OR_RETURN(const auto buffer,
                              device_->allocate(1 << 20, concat("ckpt-device-test-", random_id())));
        std::vector<std::byte> out = pattern(1 << 20, static_cast<std::uint32_t>(t)), back(1 << 20);
        CKPT_ASSIGN_OR_RETURN(const auto pin, device_->pin(out.data(), out.size()));
        CKPT_RETURN_IF_ERROR(stream->copy(buffer->data(), out.data(), out.size()));
        CKPT_RETURN_IF_ERROR(stream->copy(back.data(), buffer->data(), back.size()));
        CKPT_ASSIGN_OR_RETURN(const auto ticket, stream->mark());
        CKPT_RETURN_IF_ERROR(stream->wait(ticket, Deadline::after_seconds(20), abort_));
        return out == back ? Status::ok() : data_loss("other bytes came back");
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.is_ok()) << outcome.to_string();
}

INSTANTIATE_TEST_SUITE_P(All, DeviceContract, testing::Values(DeviceKind::kHost, DeviceKind::kCuda),
                         [](const auto& device) {
                           return device.param == DeviceKind::kHost ? "host" : "cuda";
                         });

TEST(HostDevice, NamesInDevShmAreNewAndGoWithTheBuffer) {
  const auto device = make_host_device();
  const std::string name = concat("ckpt-device-test-", random_id());
  auto buffer = *device->allocate(4096, name);
  EXPECT_EQ(device->allocate(4096, name).status().code(), StatusCode::kAlreadyExists);
  auto opened = *device->open(buffer->handle());
  opened->data()[17] = std::byte(3);
  opened.reset();  // closing what was opened leaves the name to its maker
  EXPECT_TRUE(SharedMemory::open(name).is_ok());
  EXPECT_EQ(buffer->data()[17], std::byte(3));
  buffer.reset();
  EXPECT_EQ(SharedMemory::open(name).status().code(), StatusCode::kNotFound);
}

TEST(HostDevice, CloseToOthersKeepsWhatIsOpen) {
  const auto device = make_host_device();
  auto buffer = *device->allocate(kSharedBytes, concat("ckpt-device-test-", random_id()));
  const auto opened = *device->open(buffer->handle());
  buffer->close_to_others();
  EXPECT_EQ(open_in_child(buffer->handle()), StatusCode::kNotFound);
  buffer->data()[1] = std::byte(9);
  EXPECT_EQ(opened->data()[1], std::byte(9));
}

TEST(HostDevice, RefusesAHandleOfAnotherSize) {
  const auto device = make_host_device();
  const auto buffer = *device->allocate(8192, concat("ckpt-device-test-", random_id()));
  BufferHandle handle = buffer->handle();
  handle.bytes = 1 << 20;
  EXPECT_EQ(device->open(handle).status().code(), StatusCode::kProtocol);
}

TEST(CudaDevice, AreCountedAndMissingOnesAreNoFailure) {
  const Result<int> found = find_gpus();
  if (!found.is_ok()) GTEST_SKIP() << found.status().to_string();
  EXPECT_EQ(*found, cuda_device_count());
  EXPECT_EQ(make_cuda_device(0).is_ok(), *found > 0);
}

TEST(CudaDevice, CopiesFromANeighbourAndLeavesItsDigestsToOthers) {
  if (cuda_device_count() < 2)
    GTEST_SKIP() << "needs two GPUs, and there are " << cuda_device_count();
  const auto here = *make_cuda_device(0), there = *make_cuda_device(1);
  const auto buffer = *there->allocate(kSharedBytes, "of the neighbour");
  const std::vector<std::byte> data = pattern(kSharedBytes, 21);
  std::vector<std::byte> back(kSharedBytes);
  AbortSignal never;
  const auto copy = [&](Device& device, std::byte* to, const std::byte* from) {
    const auto stream = *device.make_stream();
    ASSERT_TRUE(stream->copy(to, from, kSharedBytes).is_ok());
    ASSERT_TRUE(stream->wait(*stream->mark(), Deadline::after_seconds(20), never).is_ok());
  };
  copy(*there, buffer->data(), data.data());
  EXPECT_TRUE(here->holds(buffer->data()));
  EXPECT_FALSE(here->digests(buffer->data()));
  EXPECT_TRUE(there->digests(buffer->data()));
  copy(*here, back.data(), buffer->data());
  EXPECT_TRUE(back == data);
}

TEST(CudaDevice, IsFoundByItsUuid) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (int ordinal = 0; ordinal < cuda_device_count(); ++ordinal) {
    const auto device = *make_cuda_device(ordinal);
    const auto found = make_cuda_device(device->uuid());
    ASSERT_TRUE(found.is_ok()) << found.status().to_string();
    EXPECT_EQ((*found)->uuid(), device->uuid());
  }
  EXPECT_EQ(make_cuda_device("GPU-00000000-0000-0000-0000-000000000000").status().code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (argc == 7 && std::strcmp(argv[1], "--open") == 0) {
    const ckpt::Status status = ckpt::open_as_other_process(argv + 2);
    if (!status.is_ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return static_cast<int>(status.code());
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
