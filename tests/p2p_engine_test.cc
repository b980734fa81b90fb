// Ranks that read each other's memory by an engine of the application's (TransferEngine).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/strings.h"
#include "checkpoint_engine/transfer_engine.h"
#include "support/job.h"

namespace ckpt::testing {
namespace {

using ::testing::HasSubstr;

/// Engines of one process that write to registered destinations only.
class DirectEngines {
 public:
  class Engine final : public TransferEngine {
   public:
    Engine(DirectEngines& all, std::string address) : all_(all), address_(std::move(address)) {}
    ~Engine() override { set_message_handler({}); }
    std::string address() const override { return address_; }
    Status register_memory(void* data, std::uint64_t bytes) override {
      const std::lock_guard lock(all_.mutex_);
      all_.registered_[static_cast<std::byte*>(data)] = bytes;
      return Status::ok();
    }
    void deregister_memory(void* data) override {
      const std::lock_guard lock(all_.mutex_);
      const auto* begin = static_cast<std::byte*>(data);
      const auto* end = begin + all_.registered_[static_cast<std::byte*>(data)];
      all_.torn_reads_ += std::ranges::count_if(
          all_.being_read_, [&](const std::byte* at) { return at >= begin && at < end; });
      all_.registered_.erase(static_cast<std::byte*>(data));
    }
    bool takes_destinations() const override { return true; }
    Status register_destination(void* data, std::uint64_t bytes) override {
      const std::lock_guard lock(all_.mutex_);
      if (all_.refuses_) return resource_exhausted("no room for a destination");
      all_.destinations_[static_cast<std::byte*>(data)] = bytes;
      return Status::ok();
    }
    void deregister_destination(void* data) override {
      const std::lock_guard lock(all_.mutex_);
      all_.destinations_.erase(static_cast<std::byte*>(data));
    }
    Status read(const std::string&, std::span<const Piece> pieces, double,
                const std::function<bool()>&) override {
      for (const Piece& piece : pieces) {
        all_.count(static_cast<std::byte*>(piece.destination), piece.bytes);
        const auto* from = reinterpret_cast<const std::byte*>(piece.remote_address);
        if (!all_.begin_read(from)) return not_found("no such memory");
        if (all_.slow_ && piece.bytes > sizeof(std::uint64_t)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        std::memcpy(piece.destination, from, piece.bytes);
        all_.end_read(from);
      }
      return Status::ok();
    }
    Status send(const std::string& address, std::span<const std::byte> message) override {
      const std::lock_guard lock(all_.sending_);
      const auto at = all_.handlers_.find(address);
      if (at != all_.handlers_.end()) at->second(message);
      return Status::ok();
    }
    void set_message_handler(MessageHandler handler) override {
      const std::lock_guard lock(all_.sending_);
      if (handler) {
        all_.handlers_[address_] = std::move(handler);
      } else {
        all_.handlers_.erase(address_);
      }
    }

   private:
    DirectEngines& all_;
    const std::string address_;
  };

  std::function<void(ParameterServerOptions&)> ranks_of(const std::string& job) {
    return [this, job](ParameterServerOptions& options) {
      options.transfer_engine =
          std::make_shared<Engine>(*this, concat(job, options.rank.value_or(0)));
    };
  }
  void refuse_destinations(bool refuses) {
    const std::lock_guard lock(mutex_);
    refuses_ = refuses;
  }
  void be_slow() { slow_ = true; }
  /// Reads of memory that was taken back meanwhile.
  std::int64_t torn_reads() {
    const std::lock_guard lock(mutex_);
    return torn_reads_;
  }
  std::uint64_t direct_bytes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(direct_bytes_, 0);
  }
  std::uint64_t other_bytes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(other_bytes_, 0);
  }
  std::size_t destinations() {
    const std::lock_guard lock(mutex_);
    return destinations_.size();
  }

 private:
  void count(const std::byte* to, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool direct = std::ranges::any_of(destinations_, [&](const auto& range) {
      return to >= range.first && to + bytes <= range.first + range.second;
    });
    (direct ? direct_bytes_ : other_bytes_) += bytes;
  }

  bool begin_read(const std::byte* from) {
    const std::lock_guard lock(mutex_);
    const bool held = std::ranges::any_of(registered_, [&](const auto& range) {
      return from >= range.first && from < range.first + range.second;
    });
    if (held) being_read_.insert(from);
    return held;
  }
  void end_read(const std::byte* from) {
    const std::lock_guard lock(mutex_);
    being_read_.erase(being_read_.find(from));
  }

  std::mutex mutex_;
  std::map<std::byte*, std::uint64_t> registered_;  // guarded by mutex_, as what follows
  std::multiset<const std::byte*> being_read_;
  std::int64_t torn_reads_ = 0;
  std::atomic<bool> slow_{false};
  std::map<std::byte*, std::uint64_t> destinations_;  // guarded by mutex_, as what follows
  bool refuses_ = false;
  std::uint64_t direct_bytes_ = 0, other_bytes_ = 0;
  std::recursive_mutex sending_;
  std::map<std::string, TransferEngine::MessageHandler> handlers_;  // guarded by sending_
};

bool has_stage(const UpdateReport& report, const std::string& name) {
  return std::ranges::find(report.stages, name, &StageReport::name) != report.stages.end();
}
constexpr const char* kOnDevice = "receive staging on the device";
constexpr const char* kInHostMemory = "receive staging in host memory";

class ReadIntoTheDevice : public ::testing::Test {
 protected:
  /// A job that holds `checkpoint_`, and another that is updated out of its memory, with a ring for
  /// each rank as on GPUs.
  void start(int ranks, std::vector<std::string> host_ids = {}, bool keep_buffers = false) {
    fresh_.reset();  // the next ones have their addresses
    running_.reset();
    running_ = std::make_unique<Job>(JobOptions{.ranks = 2, .adjust = engines_.ranks_of("owner")});
    ASSERT_TRUE(running_->load("c", checkpoint_).is_ok());
    const auto metas = running_->server(0).export_metas();
    ASSERT_TRUE(metas.is_ok());
    fresh_ = std::make_unique<Job>(
        JobOptions{.ranks = ranks,
                   .host_ids = std::move(host_ids),
                   .collective = "peer",
                   .sizes = kSmallRing,
                   .adjust = [&, with_engine = engines_.ranks_of("reader")](auto& options) {
                     with_engine(options);
                     options.keep_buffers = keep_buffers;
                   }});
    for (const Status& loaded :
         fresh_->run([&](int, ParameterServer& server) { return server.load_metas(*metas); })) {
      ASSERT_TRUE(loaded.is_ok()) << loaded.to_string();
    }
  }

  void update() {
    std::vector<TestEngine> workers;
    workers.emplace_back(fresh_->ranks());
    engines_.direct_bytes();
    engines_.other_bytes();
    for (const Status& status : fresh_->update("c", fresh_->call(workers))) {
      ASSERT_TRUE(status.is_ok()) << status.to_string();
    }
    for (const TestLoader& loader : workers[0].loaders) {
      EXPECT_EQ(loader.difference(checkpoint_), "");
    }
    EXPECT_EQ(engines_.destinations(), 0u) << "they end with the update";
  }

  const Checkpoint checkpoint_ = small_model(3, 91);
  DirectEngines engines_;
  std::unique_ptr<Job> running_, fresh_;
};

TEST_F(ReadIntoTheDevice, WithoutStagingInHostMemory) {
  for (const bool keep_buffers : {false, true}) {
    start(2, {}, keep_buffers);
    for (int round = 0; round < 3; ++round) {
      update();
      EXPECT_GE(engines_.direct_bytes(), fresh_->reports[0].total_bytes);
      // Doors, and nothing else.
      EXPECT_LT(engines_.other_bytes(), 1024u);
      std::uint64_t received = 0;
      for (const UpdateReport& report : fresh_->reports) {
        EXPECT_FALSE(has_stage(report, kInHostMemory));
        EXPECT_EQ(has_stage(report, kOnDevice), report.received_bytes > 0);
        received += report.received_bytes;
      }
      EXPECT_GE(received, fresh_->reports[0].total_bytes);
    }
  }
}

TEST_F(ReadIntoTheDevice, ARankWhoseRegistrationFailsReadsIntoHostMemory) {
  for (const bool keep_buffers : {false, true}) {
    start(2, {}, keep_buffers);
    update();
    EXPECT_GT(engines_.direct_bytes(), 0u);
    engines_.refuse_destinations(true);
    update();
    EXPECT_EQ(engines_.direct_bytes(), 0u);
    for (const UpdateReport& report : fresh_->reports) {
      EXPECT_FALSE(has_stage(report, kOnDevice));
      EXPECT_EQ(has_stage(report, kInHostMemory), report.received_bytes > 0);
    }
    engines_.refuse_destinations(false);
  }
}

TEST_F(ReadIntoTheDevice, WhatGoesOnToAnotherHostLiesInHostMemory) {
  start(3, {"a", "a", "b"});
  update();
  std::set<bool> ways;
  for (const UpdateReport& report : fresh_->reports) {
    EXPECT_FALSE(has_stage(report, kOnDevice) && has_stage(report, kInHostMemory));
    if (report.received_bytes > 0) ways.insert(has_stage(report, kInHostMemory));
  }
  EXPECT_TRUE(ways.contains(true)) << "the other host reads it from there";
}

// Its patience is short, so that leases do not keep the memory: what is under way does.
TEST_F(ReadIntoTheDevice, AnOwnerTakesNothingBackThatIsBeingRead) {
  running_ = std::make_unique<Job>(JobOptions{
      .ranks = 2, .adjust = [&, with_engine = engines_.ranks_of("owner")](auto& options) {
        with_engine(options);
        options.reader_patience_seconds = 0.01;
      }});
  Checkpoint large = checkpoint_;
  for (int i = 0; i < 12; ++i) {
    const std::string name = concat("model.layers.", i, ".mlp.down_proj.weight");
    large[name] = random_tensor(name, (1 << 20) + i, 1000 + i);
  }
  engines_.be_slow();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(running_->load("c", large).is_ok());
    const auto metas = running_->server(0).export_metas();
    Job fresh({.ranks = 1, .adjust = engines_.ranks_of("reader")});
    ASSERT_TRUE(fresh.server(0).load_metas(*metas).is_ok());
    std::vector<TestEngine> workers;
    workers.emplace_back(1);
    auto prepared = fresh.server(0).prepare("c", {});  // reads already
    ASSERT_TRUE(prepared.is_ok()) << prepared.status().to_string();
    for (const Status& gone : running_->run([](int, ParameterServer& server) {
           return server.unregister_checkpoint("c", true);
         })) {
      ASSERT_TRUE(gone.is_ok()) << gone.to_string();
    }
    const auto report = fresh.server(0).commit(std::move(*prepared), fresh.call(workers));
    if (report) {
      EXPECT_EQ(workers[0].loaders[0].difference(large), "");
    } else {
      EXPECT_THAT(report.status().message(), HasSubstr("of the loaded metas"));
    }
    EXPECT_EQ(engines_.torn_reads(), 0);
  }
}

}  // namespace
}  // namespace ckpt::testing
