// Memory that another rank still has open when an update fails: the rank that fails returns, and
// its memory is freed when the other has closed it or is dead. Rank 0 is here, rank 1 a process of
// its own that can be stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <thread>

#include "base/host.h"
#include "base/strings.h"
#include "control/hub.h"
#include "parameter_server/memory_guard.h"
#include "support/job.h"
#include "worker/closer.h"

namespace ckpt::testing {
namespace {

constexpr int kRanks = 2;
constexpr double kPatienceSeconds = 60;
constexpr const char* kName = "c";

Checkpoint checkpoint() { return small_model(6, 307); }

/// One of two ranks with rings of their own: each pulls from the staging of the other.
class Rank {
 public:
  Rank(const std::string& rendezvous, const std::string& job, int rank) : rank_(rank) {
    ParameterServerOptions options;
    options.rank = rank;
    options.world_size = kRanks;
    options.rendezvous = rendezvous;
    options.external_hub = true;
    options.job = job;
    options.device = "host";
    options.collective = "peer";
    options.load_threads = 1;
    options.late_worker_seconds = 0.5;
    options.ring_bytes = kSmallRing.ring;
    options.bucket_bytes = kSmallRing.bucket;
    options.chunk_bytes = kSmallRing.chunk;
    auto server = ParameterServer::create(std::move(options));
    if (!server) throw std::runtime_error(server.status().to_string());
    server_ = std::move(*server);
  }

  ParameterServer& server() { return *server_; }

  Status load() {
    Registration part;
    int i = 0;
    for (const auto& [name, tensor] : checkpoint_) {
      if (i++ % kRanks == rank_) part.tensors.push_back({tensor.info, tensor.bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server_->register_checkpoint(kName, part));
    return server_->gather_metas(kName);
  }

  /// One that works, every byte compared.
  Status update() {
    TestLoader loader;
    CKPT_RETURN_IF_ERROR(run([&](const std::string& address, EngineCallContext&) {
      return update_weights(address, loader, {}).status();
    }));
    const std::string difference = loader.difference(checkpoint_);
    return difference.empty() ? Status() : data_loss(difference);
  }

  /// One whose engine does nothing until the update has failed. `called`: everything is open.
  Status hang(const std::function<void()>& called) {
    return run([&](const std::string&, EngineCallContext& context) {
      called();
      while (!context.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return aborted("the update has failed");
    });
  }

 private:
  Status run(const std::function<Status(const std::string&, EngineCallContext&)>& engine) {
    UpdateOptions options;
    options.instance_size = 1;
    options.timeout_seconds = kPatienceSeconds;
    return server_
        ->update(
            kName,
            [&](const std::vector<WorkerAddress>& all, EngineCallContext& context) {
              return engine(all[static_cast<std::size_t>(context.rank())].address, context);
            },
            options)
        .status();
  }

  const int rank_;
  const Checkpoint checkpoint_ = checkpoint();
  std::unique_ptr<ParameterServer> server_;
};

/// What the process of rank 1 runs: an update for each line it reads.
int serve(const std::string& rendezvous, const std::string& job) {
  Rank rank(rendezvous, job, 1);
  const auto tell = [](const std::string& line) { std::cout << line << std::endl; };
  const Status loaded = rank.load();
  tell(loaded.is_ok() ? "loaded" : loaded.to_string());
  for (std::string command; std::getline(std::cin, command);) {
    const Status status = command == "update" ? rank.update() : rank.hang([&] { tell("called"); });
    tell(status.is_ok() ? "ok" : "failed");
  }
  return 0;
}

/// The process of rank 1.
class OtherRank {
 public:
  OtherRank(const std::string& rendezvous, const std::string& job) {
    int commands[2], answers[2];
    if (::pipe2(commands, O_CLOEXEC) != 0 || ::pipe2(answers, O_CLOEXEC) != 0) std::abort();
    std::vector<std::string> words = {"closing_test", "--rank", rendezvous, job};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(commands[0], STDIN_FILENO);
      ::dup2(answers[1], STDOUT_FILENO);
      ::execv("/proc/self/exe", argv.data());
      ::_exit(127);
    }
    ::close(commands[0]);
    ::close(answers[1]);
    to_ = ::fdopen(commands[1], "w");
    from_ = ::fdopen(answers[0], "r");
  }
  ~OtherRank() {
    std::fclose(to_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    std::fclose(from_);
  }

  void command(const char* line) {
    std::fprintf(to_, "%s\n", line);
    std::fflush(to_);
  }
  std::string answer() {
    char line[1000] = {};
    if (std::fgets(line, sizeof(line), from_) == nullptr) return "the process has ended";
    return std::string(line, std::strcspn(line, "\n"));
  }
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

/// Mappings of staging in this process: of rank 0, as it has closed that of rank 1.
int mapped_staging() {
  int count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    count +=
        line.find("/dev/shm/") != std::string::npos && line.find("-staging") != std::string::npos;
  }
  return count;
}

bool is_freed() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  while (mapped_staging() > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return mapped_staging() == 0;
}

class ClosingTest : public ::testing::Test {
 protected:
  ClosingTest() {
    HubOptions options;
    options.bind_host = "127.0.0.1";
    auto hub = Hub::start(options);
    if (!hub) throw std::runtime_error(hub.status().to_string());
    hub_ = std::move(*hub);
    const std::string rendezvous = hub_->address().to_string();
    other_ = std::make_unique<OtherRank>(rendezvous, job_);
    here_ = std::make_unique<Rank>(rendezvous, job_, 0);
    const Status loaded = here_->load();
    EXPECT_TRUE(loaded.is_ok()) << loaded.to_string();
    EXPECT_EQ(other_->answer(), "loaded");
  }
  ~ClosingTest() override {
    // The other leaves when its commands end; this one waits for it, or needs not.
    auto gone = std::async(std::launch::async, [this] { other_.reset(); });
    here_.reset();
  }

  /// An update that is cancelled here when both ranks have opened everything; `before` runs then.
  Status fail(const std::function<void()>& before) {
    other_->command("hang");
    std::promise<void> called;
    auto update =
        std::async(std::launch::async, [&] { return here_->hang([&] { called.set_value(); }); });
    called.get_future().wait();
    EXPECT_EQ(other_->answer(), "called");
    before();
    here_->server().cancel(aborted("training went wrong"));
    return update.get();
  }
  void expect_update() {
    other_->command("update");
    const Status status = here_->update();
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    EXPECT_EQ(other_->answer(), "ok");
  }

  const std::string job_ = "closing-" + random_id();
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<OtherRank> other_;
  std::unique_ptr<Rank> here_;
};

TEST_F(ClosingTest, ARankThatIsHeldUpKeepsTheMemoryOfOneThatFails) {
  expect_update();
  EXPECT_TRUE(is_freed());
  // Returns although the other cannot say anything.
  EXPECT_EQ(fail([&] { other_->stop(); }).code(), StatusCode::kAborted);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(mapped_staging(), 1) << "rank 1 lives, and has it open";
  other_->go_on();
  EXPECT_EQ(other_->answer(), "failed");
  EXPECT_TRUE(is_freed());
  expect_update();
}

TEST_F(ClosingTest, ARankThatIsKilledKeepsNothing) {
  EXPECT_EQ(fail([&] { other_->stop(); }).code(), StatusCode::kAborted);
  EXPECT_EQ(mapped_staging(), 1);
  other_->kill();
  EXPECT_TRUE(is_freed());
}

TEST_F(ClosingTest, MemoryIsFlatAfterTwentyFailures) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(fail([] {}).is_ok());
    EXPECT_EQ(other_->answer(), "failed");
  }
  EXPECT_TRUE(is_freed());
  expect_update();
  EXPECT_TRUE(is_freed());
}

std::vector<std::string> names_with(const Job& job, std::string_view end) {
  std::vector<std::string> names = job.shared_objects();
  std::erase_if(names, [&](const std::string& name) { return !name.ends_with(end); });
  return names;
}

TEST(ClosingOfAPreparedUpdate, WaitsForNoWorker) {
  Job job({.ranks = kRanks, .sizes = kSmallRing, .adjust = [](ParameterServerOptions& options) {
             options.late_worker_seconds = kPatienceSeconds;
           }});
  ASSERT_TRUE(job.load(kName, checkpoint()).is_ok());
  for (const Status& status : job.run([&](int, ParameterServer& server) -> Status {
         CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare(kName, {}));
         CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
         server.abort(std::move(prepared), aborted("training went wrong"));
         return Status();
       })) {
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
  EXPECT_TRUE(wait_for_closers("", Deadline::after_seconds(0)).is_ok());
}

TEST(ClosingWithRoomLeft, TheNextUpdateDoesNotWait) {
  const Checkpoint held = checkpoint();
  Job job({.ranks = kRanks, .collective = "peer", .sizes = kSmallRing});
  ASSERT_TRUE(job.load(kName, held).is_ok());
  // As somebody who opened the memory of both and has not heard of the failure.
  std::vector<MemoryUse> uses;
  for (const Status& status : job.run([&](int, ParameterServer& server) -> Status {
         CKPT_ASSIGN_OR_RETURN(auto prepared, server.prepare(kName, {}));
         CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
         if (server.rank() == 0) {
           for (const std::string& name : names_with(job, "-guard")) {
             CKPT_ASSIGN_OR_RETURN(MemoryUse use, MemoryUse::begin(name));
             uses.push_back(std::move(use));
           }
         }
         CKPT_RETURN_IF_ERROR(server.barrier(kPatienceSeconds));
         server.abort(std::move(prepared), aborted("training went wrong"));
         return Status();
       })) {
    ASSERT_TRUE(status.is_ok()) << status.to_string();
  }
  ASSERT_EQ(uses.size(), std::size_t{kRanks});
  std::vector<TestEngine> engines;
  engines.emplace_back(kRanks);
  for (const Status& status : job.update(kName, job.call(engines))) {
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  for (const TestLoader& loader : engines[0].loaders) EXPECT_EQ(loader.difference(held), "");
  EXPECT_EQ(names_with(job, "-staging").size(), std::size_t{kRanks}) << "of the failed update";
  uses.clear();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(50);
  while (!job.shared_objects().empty() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(job.shared_objects(), std::vector<std::string>());
}

}  // namespace
}  // namespace ckpt::testing

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--rank") == 0)
    return ckpt::testing::serve(argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
