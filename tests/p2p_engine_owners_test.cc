// Owners that are read by an engine of the application's (TransferEngine), and die or stop.
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "base/deadline.h"
#include "checkpoint_engine/transfer_engine.h"
#include "support/p2p_jobs.h"

namespace ckpt::testing {
namespace {

/// Engines of one process, with faults for those who are read.
class DamagedEngines {
 public:
  class Engine final : public TransferEngine {
   public:
    Engine(DamagedEngines& all, std::string address) : all_(all), address_(std::move(address)) {}
    ~Engine() override { set_message_handler({}); }
    std::string address() const override { return address_; }
    Status register_memory(void*, std::uint64_t) override { return Status::ok(); }
    void deregister_memory(void*) override {}
    Status read(const std::string& address, std::span<const Piece> pieces, double seconds,
                const std::function<bool()>& cancelled) override {
      CKPT_RETURN_IF_ERROR(
          all_.admit(address, pieces, Deadline::after_seconds(seconds), cancelled));
      for (const Piece& piece : pieces) {
        std::memcpy(piece.destination, reinterpret_cast<const void*>(piece.remote_address),
                    piece.bytes);
      }
      return Status::ok();
    }
    Status send(const std::string& address, std::span<const std::byte> message) override {
      const std::lock_guard lock(all_.mutex_);
      if (all_.is_stopped(address) || all_.is_stopped(address_)) return Status::ok();
      const auto at = all_.handlers_.find(address);
      if (at != all_.handlers_.end()) at->second(message);
      return Status::ok();
    }
    void set_message_handler(MessageHandler handler) override {
      const std::lock_guard lock(all_.mutex_);
      if (handler) {
        all_.handlers_[address_] = std::move(handler);
      } else {
        all_.handlers_.erase(address_);
      }
    }

   private:
    DamagedEngines& all_;
    const std::string address_;
  };

  std::function<void(ParameterServerOptions&)> ranks_of(const std::string& job) {
    return [this, job](ParameterServerOptions& options) {
      options.transfer_engine =
          std::make_shared<Engine>(*this, concat(job, options.rank.value_or(0)));
    };
  }
  /// Nobody answers at `address` behind so many looks at its door.
  void die_behind(const std::string& address, int looks) {
    const std::lock_guard lock(mutex_);
    looks_left_[address] = looks;
  }
  /// So many reads of more than a door are answered, and the next ones hang, as do doors then;
  /// messages are lost.
  void stop_behind(const std::string& address, int reads) {
    const std::lock_guard lock(mutex_);
    reads_left_[address] = reads;
  }
  void go_on(const std::string& address) {
    const std::lock_guard lock(mutex_);
    reads_left_.erase(address);
    changed_.notify_all();
  }

 private:
  Status admit(const std::string& address, std::span<const TransferEngine::Piece> pieces,
               Deadline deadline, const std::function<bool()>& cancelled) {
    std::unique_lock lock(mutex_);
    if (pieces.empty()) return Status::ok();  // its host accepts connections, as when it is stopped
    const bool door = pieces.size() == 1 && pieces[0].bytes == sizeof(std::uint64_t);
    if (const auto at = looks_left_.find(address); at != looks_left_.end()) {
      if (at->second <= 0) return peer_lost("nobody answers");
      if (door) --at->second;
    }
    if (const auto at = reads_left_.find(address); at != reads_left_.end() && !door) --at->second;
    while (is_stopped(address)) {
      if (cancelled()) return aborted("given up");
      if (deadline.expired()) return deadline_exceeded("no answer");
      changed_.wait_for(lock, std::chrono::milliseconds(20));
    }
    return Status::ok();
  }
  bool is_stopped(const std::string& address) const {
    const auto at = reads_left_.find(address);
    return at != reads_left_.end() && at->second < 0;
  }

  // All guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, TransferEngine::MessageHandler> handlers_;
  std::map<std::string, int> looks_left_, reads_left_;
};

class ByAnEngine : public ::testing::Test {
 protected:
  /// The owners are replicas of each other.
  void start(int owners, const Checkpoint& checkpoint) {
    running_.emplace(JobOptions{.ranks = owners, .adjust = engines_.ranks_of("owner")});
    register_replicas(*running_, checkpoint);
    fresh_.emplace(JobOptions{.ranks = 1, .adjust = engines_.ranks_of("reader")});
    expect_ok(load_metas(*fresh_, metas_of(*running_)));
  }

  DamagedEngines engines_;
  std::optional<Job> running_, fresh_;
};

// A recipient looks at a door three times: it asks, sees how much there is, and takes its lease.
TEST_F(ByAnEngine, AReplicaFillsInForAnOwnerThatGoesBetweenTheQuestionAndTheLease) {
  const Checkpoint checkpoint = small_model(3, 77);
  start(2, checkpoint);
  for (const int looks : {0, 1, 2}) {
    engines_.die_behind("owner1", looks);
    auto engines = one_engine(1);
    expect_ok(update(*fresh_, "c", engines));
    expect_whole(engines, checkpoint);
  }
  engines_.die_behind("owner0", 1);
  auto engines = one_engine(1);
  expect_refused(update(*fresh_, "c", engines), "rank 0");
}

// Nothing that is read of it comes back before the time of the update is over, which is far more
// than an owner may be silent.
constexpr double kUpdateSeconds = 100;

TEST_F(ByAnEngine, AReplicaFillsInForAnOwnerThatStopsInTheMiddleOfARead) {
  const Checkpoint checkpoint = large_model();
  start(2, checkpoint);
  engines_.stop_behind("owner1", 2);
  auto engines = one_engine(1);
  expect_ok(update(*fresh_, "c", engines, {.timeout_seconds = kUpdateSeconds}));
  expect_whole(engines, checkpoint);
  engines_.go_on("owner1");
}

TEST_F(ByAnEngine, AnOwnerThatStopsInTheMiddleOfAReadIsNamed) {
  const Checkpoint checkpoint = large_model();
  start(1, checkpoint);
  engines_.stop_behind("owner0", 2);
  auto engines = one_engine(1);
  const auto refused = update(*fresh_, "c", engines, {.timeout_seconds = kUpdateSeconds});
  expect_refused(refused, "rank 0");
  expect_refused(refused, "of the loaded metas");
  expect_refused(refused, "may be stopped");
  // The next one works.
  engines_.go_on("owner0");
  auto others = one_engine(1);
  expect_ok(update(*fresh_, "c", others));
  expect_whole(others, checkpoint);
}

}  // namespace
}  // namespace ckpt::testing
