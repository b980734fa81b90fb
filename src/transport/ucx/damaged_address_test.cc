// Addresses in descriptors and greetings go to UCX, which ends the process over some that it does
// not like. None but those that a UCX made may get there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "base/host.h"
#include "transport/descriptor.h"
#include "transport/seal.h"
#include "transport/ucx/endpoint.h"
#include "transport/ucx/ucx_transport.h"

namespace ckpt::ucx {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kRegionBytes = 4096;

Deadline soon() { return Deadline::after_seconds(30); }

std::vector<std::byte> bytes_of(std::size_t count, unsigned char value) {
  return std::vector<std::byte>(count, std::byte{value});
}

std::unique_ptr<Transport> make(const char* label) {
  auto transport = make_ucx_transport({.label = label});
  EXPECT_TRUE(transport.is_ok()) << transport.status().to_string();
  return std::move(transport).value();
}

/// An owner, and readers that show that it lives.
class DamagedAddress : public ::testing::Test {
 protected:
  DamagedAddress() {
    std::iota(source_.begin(), source_.end(), 0);
    region_ = owner_->register_memory(source_.data(), source_.size()).value();
    bytes_ = owner_->descriptor().value();
    descriptor_ = decode_descriptor(bytes_, "ucx").value();
  }

  static Status read(const std::vector<std::byte>& descriptor, std::vector<unsigned char>& into) {
    const auto reader = make("reader");
    CKPT_ASSIGN_OR_RETURN(const auto peer,
                          reader->connect(descriptor, {.label = "rank 3"}, soon()));
    const ReadRange range{1, 0, into.data(), into.size()};
    return reader->read(*peer, {&range, 1}, soon())->wait(soon());
  }

  void expect_alive() const {
    std::vector<unsigned char> into(kRegionBytes);
    const Status status = read(bytes_, into);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_EQ(into, source_);
  }

  std::vector<unsigned char> source_ = std::vector<unsigned char>(kRegionBytes);
  const std::unique_ptr<Transport> owner_ = make("owner");
  std::unique_ptr<MemoryRegion> region_;
  std::vector<std::byte> bytes_;
  Descriptor descriptor_;
};

TEST_F(DamagedAddress, OfADescriptorIsRefused) {
  const auto at = std::search(bytes_.begin(), bytes_.end(), descriptor_.address.begin(),
                              descriptor_.address.end());
  ASSERT_NE(at, bytes_.end());
  const auto begin = static_cast<std::size_t>(at - bytes_.begin());
  const auto reader = make("reader");
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    auto damaged = bytes_;
    damaged[begin + random() % descriptor_.address.size()] ^=
        static_cast<std::byte>(1 + random() % 255);
    EXPECT_EQ(reader->connect(damaged, {}, soon()).status().code(), StatusCode::kProtocol);
  }
  expect_alive();
}

// Such as another program would write, with all that belongs to it but UCX's own address.
TEST_F(DamagedAddress, ThatIsNoneIsTheLossOfItsOwner) {
  for (const auto& address : {std::vector<std::byte>(), bytes_of(1, 0), bytes_of(8, 0),
                              bytes_of(79, 0xff), bytes_of(79, 0x02)}) {
    Descriptor other = descriptor_;
    other.address = address;
    std::vector<unsigned char> into(kRegionBytes, 0xa5);
    const Status status = read(encode_descriptor(other), into);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("rank 3"));
    EXPECT_THAT(status.message(), HasSubstr("no address of ucx"));
    EXPECT_EQ(into, std::vector<unsigned char>(kRegionBytes, 0xa5));
  }
  expect_alive();
}

/// Somebody on the network who reaches the owner's port and says what he likes.
class Stranger {
 public:
  explicit Stranger(const std::vector<std::byte>& owner) {
    progress_ = Progress::create(Context::create(UcxOptions{}).value()).value();
    progress_->start({[this](const Message& message) { hear(message); },
                      [](const Hello&) { return Status::ok(); }, [](Arrival&) {}});
    progress_->run([&] {
      endpoint_ = Endpoint::connect(*progress_, progress_->add_worker().value(), owner,
                                    [](const std::string&) {})
                      .value();
    });
  }
  ~Stranger() {
    progress_->run([this] { endpoint_.reset(); });
    progress_->stop();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  /// The owner's word about this connection; "" when there is none in a long time.
  std::string answer_to(std::uint64_t connection, const Hello& hello) {
    progress_->run([&] { endpoint_->send({connection, 0, hello}); });
    std::unique_lock lock(mutex_);
    heard_.wait_for(lock, std::chrono::seconds(30), [&] { return refusals_.contains(connection); });
    return refusals_[connection];
  }

 private:
  void hear(const Message& message) {
    const auto* refusal = std::get_if<Refusal>(&message.body);
    if (refusal == nullptr) return;
    const std::lock_guard lock(mutex_);
    refusals_[message.connection] = refusal->text;
    heard_.notify_all();
  }

  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Endpoint> endpoint_;
  std::mutex mutex_;
  std::condition_variable heard_;
  std::map<std::uint64_t, std::string> refusals_;  // guarded by mutex_
};

TEST_F(DamagedAddress, OfAGreetingIsNotUsed) {
  Stranger stranger(descriptor_.address);
  const auto nonsense = bytes_of(79, 0xff);
  Hello hello{kMessageVersion, random_id(), "stranger",
              nonsense,        random_id(), seal_of(nonsense, "")};
  EXPECT_THAT(stranger.answer_to(1, hello), HasSubstr("restarted")) << "who does not know it";
  hello.owner_instance = descriptor_.instance;
  EXPECT_THAT(stranger.answer_to(2, hello), HasSubstr("damaged"));
  hello.address = {};
  EXPECT_THAT(stranger.answer_to(3, hello), HasSubstr("damaged"));
  hello.version = kMessageVersion + 1;
  EXPECT_THAT(stranger.answer_to(4, hello), HasSubstr("version"));
  expect_alive();
}

}  // namespace
}  // namespace ckpt::ucx
