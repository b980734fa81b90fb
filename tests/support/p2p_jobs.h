// Jobs that fill themselves out of the memory of others: what their tests share.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/host.h"
#include "base/strings.h"
#include "support/job.h"

namespace ckpt::testing {

inline void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) ASSERT_TRUE(status.is_ok()) << status.to_string();
}

/// All failed with the same cause, which contains `text`.
inline void expect_refused(const std::vector<Status>& statuses, const std::string& text) {
  for (const Status& status : statuses) {
    ASSERT_FALSE(status.is_ok());
    EXPECT_THAT(status.to_string(), ::testing::HasSubstr(text));
    EXPECT_EQ(status.to_string(), statuses[0].to_string()) << "the first cause is everybody's";
  }
}

/// More than a ring, so that an update cannot be fetched whole before it is committed.
inline Checkpoint large_model() {
  Checkpoint checkpoint = small_model(2, 71);
  for (int i = 0; i < 30; ++i) {
    const std::string name = concat("model.layers.", i, ".mlp.down_proj.weight");
    checkpoint[name] = random_tensor(name, (1 << 20) + i, 1000 + i);
  }
  return checkpoint;
}

/// Commits an update of "c" while `owner` unregisters the memory that it reads, which must wait.
inline void commit_while_unregistering(ParameterServer& reader,
                                       std::unique_ptr<PreparedUpdate> prepared,
                                       const EngineCall& call, ParameterServer& owner) {
  std::atomic<bool> gone{false};
  Status unregistered;
  std::thread unregistering([&] {
    unregistered = owner.unregister_checkpoint("c");
    gone = true;
  });
  const auto report = reader.commit(
      std::move(prepared),
      [&](const std::vector<WorkerAddress>& all, EngineCallContext& context) -> Status {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_FALSE(gone) << "freed in the middle of an update";
        return call(all, context);
      });
  unregistering.join();
  EXPECT_TRUE(report.is_ok()) << report.status().to_string();
  EXPECT_TRUE(unregistered.is_ok()) << unregistered.to_string();
}

inline std::string metas_of(Job& job) {
  const auto metas = job.server(0).export_metas();
  EXPECT_TRUE(metas.is_ok()) << metas.status().to_string();
  return metas.is_ok() ? *metas : std::string();
}

/// Of two jobs, to be read side by side.
inline std::string metas_of_both(Job& one, Job& other) {
  return concat("[", metas_of(one), ",", metas_of(other), "]");
}

inline std::vector<Status> load_metas(Job& job, const std::string& metas) {
  return job.run([&](int, ParameterServer& server) { return server.load_metas(metas); });
}

/// Every recipient has a worker of its own engine.
inline std::vector<Status> update(Job& job, const std::string& name,
                                  std::vector<TestEngine>& engines, UpdateOptions options = {}) {
  return job.update(name, job.call(engines), std::move(options));
}

inline std::vector<TestEngine> one_engine(int workers) {
  std::vector<TestEngine> engines;
  engines.emplace_back(workers);
  return engines;
}

inline void expect_whole(const std::vector<TestEngine>& engines, const Checkpoint& checkpoint) {
  for (const TestEngine& engine : engines) {
    for (const TestLoader& loader : engine.loaders) EXPECT_EQ(loader.difference(checkpoint), "");
  }
}

/// Every rank of `job` registers all of `checkpoint`, so that each can stand in for the others.
inline void register_replicas(Job& job, const Checkpoint& checkpoint) {
  expect_ok(job.run([&](int, ParameterServer& server) -> Status {
    Registration all;
    for (const auto& [name, tensor] : checkpoint) {
      all.tensors.push_back({tensor.info, tensor.bytes.data()});
    }
    CKPT_RETURN_IF_ERROR(server.register_checkpoint("c", all));
    return server.gather_metas("c");
  }));
}

/// A job of one rank that holds "c", one tensor, in memory that a test can damage.
class OwnerInAFile {
 public:
  OwnerInAFile() {
    const std::string path = concat("/dev/shm/ckpt-integrity-", random_id(), ".bin");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
    file_ = UniqueFd(::open(path.c_str(), O_RDWR));
    EXPECT_TRUE(file_);
    Registration registration{.files = {{tensor.info, path, 0}},
                              .shared_memory_files = SharedMemoryFiles::kUseAndRemove};
    EXPECT_TRUE(job.server(0).register_checkpoint("c", registration).is_ok());
    EXPECT_TRUE(job.server(0).gather_metas("c").is_ok());
  }
  void damage() { write(tensor.bytes[kAt] ^ std::byte{0x10}); }
  void repair() { write(tensor.bytes[kAt]); }

  const OwnedTensor tensor = random_tensor("model.layers.0.weight", 3 << 20, 5);
  Job job{{.ranks = 1}};

 private:
  static constexpr std::size_t kAt = 1234567;
  void write(std::byte value) { EXPECT_EQ(::pwrite(file_.get(), &value, 1, kAt), 1); }

  UniqueFd file_;
};

}  // namespace ckpt::testing
