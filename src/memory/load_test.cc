#include "memory/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/host.h"
#include "base/strings.h"
#include "checkpoint/digest.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = 1 << 20;

/// A stream that gives sums only when a later mark is asked for, as a GPU's does, and keeps count
/// of those that are due.
class LateSums final : public CopyStream {
 public:
  /// `far`: what it cannot digest.
  LateSums(std::unique_ptr<CopyStream> inner, std::size_t& most_due,
           const std::set<const std::byte*>& far)
      : inner_(std::move(inner)), most_due_(most_due), far_(far) {}

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    return inner_->copy(to, from, bytes);
  }
  Status digest(const std::vector<DigestRequest>& requests, std::uint64_t* sums) override {
    if (!requests.empty() && far_.contains(requests[0].data)) return internal_error("too far");
    std::vector<std::uint64_t> values(requests.size());
    CKPT_RETURN_IF_ERROR(inner_->digest(requests, values.data()));
    due_.push_back({last_ + 1, std::move(values), sums});
    most_due_ = std::max(most_due_, due_.size());
    return Status::ok();
  }
  Result<Ticket> mark() override {
    CKPT_ASSIGN_OR_RETURN(last_, inner_->mark());
    return last_;
  }
  Result<bool> reached(Ticket ticket) override {
    while (!due_.empty() && due_.front().ticket <= ticket) {
      std::ranges::copy(due_.front().values, due_.front().sums);
      due_.pop_front();
    }
    return inner_->reached(ticket);
  }
  Status wait(Ticket ticket, Deadline, AbortSignal&) override { return reached(ticket).status(); }

 private:
  struct Due {
    Ticket ticket;
    std::vector<std::uint64_t> values;
    std::uint64_t* sums;
  };
  const std::unique_ptr<CopyStream> inner_;
  std::size_t& most_due_;
  const std::set<const std::byte*>& far_;
  std::deque<Due> due_;
  Ticket last_ = 0;
};

/// CPU memory as a device of its own.
class DeviceOfPins final : public Device {
 public:
  DeviceKind kind() const override { return inner_->kind(); }
  std::string uuid() const override { return inner_->uuid(); }
  std::string name() const override { return inner_->name(); }
  Result<DeviceMemory> memory() override { return inner_->memory(); }
  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t bytes,
                                                 const std::string& name) override {
    return inner_->allocate(bytes, name);
  }
  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle& handle) override {
    return inner_->open(handle);
  }
  Result<std::unique_ptr<CopyStream>> make_stream() override {
    CKPT_ASSIGN_OR_RETURN(auto stream, inner_->make_stream());
    return std::unique_ptr<CopyStream>(
        std::make_unique<LateSums>(std::move(stream), most_due, far));
  }
  Result<std::unique_ptr<PinnedRange>> pin(std::byte* data, std::uint64_t bytes) override {
    if (refuses) return resource_exhausted("locked memory");
    if (on_pin) on_pin();
    return inner_->pin(data, bytes);
  }
  bool digests(const std::byte* data) const override { return !far.contains(data); }
  bool refuses = false;
  std::function<void()> on_pin;
  std::set<const std::byte*> far;  ///< what it can copy only
  std::size_t most_due = 0;        ///< digests that a stream of it had queued at once

 private:
  const std::shared_ptr<Device> inner_ = make_host_device();
};

/// A device of which only pin() is used: notes what it pinned, and can refuse.
class PinningDevice final : public Device {
 public:
  struct Pin {
    const std::byte* data;
    std::uint64_t bytes;
    bool full;  // no byte was zero when it was pinned
  };
  class Range final : public PinnedRange {
   public:
    explicit Range(std::atomic<int>& live) : live_(live) { ++live_; }
    ~Range() override { --live_; }

   private:
    std::atomic<int>& live_;
  };

  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string uuid() const override { return {}; }
  std::string name() const override { return "pinning test device"; }
  Result<DeviceMemory> memory() override { return unsupported("test"); }
  Result<std::unique_ptr<DeviceBuffer>> allocate(std::uint64_t, const std::string&) override {
    return unsupported("test");
  }
  Result<std::unique_ptr<DeviceBuffer>> open(const BufferHandle&) override {
    return unsupported("test");
  }
  Result<std::unique_ptr<CopyStream>> make_stream() override { return unsupported("test"); }
  Result<std::unique_ptr<PinnedRange>> pin(std::byte* data, std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (static_cast<int>(pins.size()) == refuse_from) return resource_exhausted("locked memory");
    pins.push_back({data, bytes, std::find(data, data + bytes, std::byte(0)) == data + bytes});
    return std::unique_ptr<PinnedRange>(new Range(live));
  }

  std::vector<Pin> pins;
  std::atomic<int> live{0};
  int refuse_from = -1;

 private:
  std::mutex mutex_;
};

std::vector<std::byte> content(std::uint64_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& b : data) b = std::byte(1 + random() % 255);  // never zero
  return data;
}

/// Some tensors of awkward sizes, in memory and in three files at odd offsets, and where they go.
class LoadTest : public testing::Test {
 protected:
  LoadTest() : folder_(fs::current_path() / concat("ckpt-load-test-", random_id())) {
    fs::create_directory(folder_);
    std::vector<std::uint64_t> bytes = {0, 1, 7, 8, 9, 255, 256, 257, kMiB - 1, kMiB, kMiB + 1};
    bytes.insert(bytes.end(), {20 * kMiB + 3, 5000, 0, 3 * kMiB + 8});
    const PoolLayout layout = *lay_out_pool(bytes);
    pool_bytes_ = layout.bytes;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      data_.push_back(content(bytes[i], static_cast<std::uint32_t>(i)));
      pointers_.push_back(data_.back().data());
      tensors_.push_back({concat("tensor.", i), bytes[i], layout.offsets[i]});
      total_ += bytes[i];
    }
    write_files();
  }
  ~LoadTest() override { fs::remove_all(folder_); }

  void write_files() {
    for (int f = 0; f < 3; ++f) {
      const std::string path = folder_ / concat("model-", f, ".safetensors");
      std::ofstream file(path, std::ios::binary);
      file << std::string(13 + f, 'h');
      for (std::size_t i = f; i < data_.size(); i += 3) {
        sources_.resize(data_.size());
        sources_[i] = {path, static_cast<std::uint64_t>(file.tellp())};
        file.write(reinterpret_cast<const char*>(data_[i].data()),
                   static_cast<std::streamsize>(data_[i].size()));
      }
    }
  }

  void expect_loaded(const HostPool& pool, const TensorSums& sums) const {
    ASSERT_EQ(sums.tensors(), tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_EQ(sums.digest(i), digest(data_[i])) << tensors_[i].name;
      const std::byte* loaded = pool.pointer(tensors_[i].pool_offset);
      EXPECT_TRUE(std::equal(data_[i].begin(), data_[i].end(), loaded)) << tensors_[i].name;
    }
  }

  static LoadOptions options(int threads = 3) {
    return {.deadline = Deadline::after_seconds(60), .threads = threads};
  }

  const fs::path folder_;
  std::vector<std::vector<std::byte>> data_;
  std::vector<const std::byte*> pointers_;
  std::vector<PoolTensor> tensors_;
  std::vector<FileSource> sources_;
  std::uint64_t pool_bytes_ = 0;
  std::uint64_t total_ = 0;
};

TEST_F(LoadTest, FilesArriveWithTheirDigests) {
  for (const int threads : {1, 4}) {
    const auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
    const auto sums = load_files(*pool, tensors_, sources_, options(threads));
    ASSERT_TRUE(sums.is_ok()) << sums.status().to_string();
    expect_loaded(*pool, *sums);
  }
}

TEST_F(LoadTest, MemoryArrivesWithItsDigests) {
  for (const int threads : {1, 4}) {
    const auto pool = *HostPool::create(pool_bytes_);
    const auto sums = load_memory(*pool, tensors_, pointers_, options(threads));
    ASSERT_TRUE(sums.is_ok()) << sums.status().to_string();
    expect_loaded(*pool, *sums);
  }
}

TEST_F(LoadTest, DeviceMemoryArrivesWithItsDigestsInPinnedPieces) {
  DeviceOfPins device;
  for (const int threads : {1, 4}) {
    const auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
    const auto sums = load_device(*pool, tensors_, pointers_, device, options(threads));
    ASSERT_TRUE(sums.is_ok()) << sums.status().to_string();
    expect_loaded(*pool, *sums);
    for (std::size_t piece = 0; piece < pool->pieces().size(); ++piece) {
      EXPECT_TRUE(pool->pinned(piece)) << piece;
    }
  }
  EXPECT_LT(device.most_due, tensors_.size());
}

TEST_F(LoadTest, MemoryThatTheDeviceOnlyCopiesIsDigestedWhereItArrives) {
  DeviceOfPins device;
  for (std::size_t i = 0; i < pointers_.size(); i += 2) {
    if (!data_[i].empty()) device.far.insert(pointers_[i]);
  }
  const auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
  const auto sums = load_device(*pool, tensors_, pointers_, device, options(4));
  ASSERT_TRUE(sums.is_ok()) << sums.status().to_string();
  expect_loaded(*pool, *sums);
}

TEST_F(LoadTest, DeviceMemoryLeavesWhatLiesBesideIt) {
  DeviceOfPins device;
  const auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
  constexpr std::size_t kFromMemory = 9;  // within the first piece, whose rest follows
  const auto memory = load_memory(*pool, std::span(tensors_).first(kFromMemory),
                                  std::span(pointers_).first(kFromMemory), options());
  const auto rest = load_device(*pool, std::span(tensors_).subspan(kFromMemory),
                                std::span(pointers_).subspan(kFromMemory), device, options());
  ASSERT_TRUE(memory.is_ok() && rest.is_ok());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::byte* loaded = pool->pointer(tensors_[i].pool_offset);
    EXPECT_TRUE(std::equal(data_[i].begin(), data_[i].end(), loaded)) << tensors_[i].name;
  }
}

TEST_F(LoadTest, ARefusedPinEndsALoadFromTheDevice) {
  DeviceOfPins device;
  device.refuses = true;
  const auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
  const auto sums = load_device(*pool, tensors_, pointers_, device, options());
  EXPECT_EQ(sums.status().code(), StatusCode::kResourceExhausted) << sums.status().to_string();
}

TEST_F(LoadTest, FilesAndMemoryShareOnePool) {
  const auto pool = *HostPool::create(pool_bytes_);
  constexpr std::size_t kFromFiles = 11;
  const auto files = load_files(*pool, std::span(tensors_).first(kFromFiles),
                                std::span(sources_).first(kFromFiles), options());
  const auto memory = load_memory(*pool, std::span(tensors_).subspan(kFromFiles),
                                  std::span(pointers_).subspan(kFromFiles), options());
  ASSERT_TRUE(files.is_ok() && memory.is_ok());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    EXPECT_EQ(i < kFromFiles ? files->digest(i) : memory->digest(i - kFromFiles), digest(data_[i]));
  }
}

TEST_F(LoadTest, FilesInPlaceAreDigestedWhereTheyLie) {
  const std::string path = concat("/dev/shm/ckpt-load-test-", random_id());
  fs::copy_file(sources_[2].path, path);
  const auto pool = *HostPool::create(3 * kMiB);
  const std::uint64_t base = pool->add_file(*FileMapping::map(path));
  fs::remove(path);
  std::vector<PoolTensor> in_place;
  for (std::size_t i = 2; i < tensors_.size(); i += 3) {
    in_place.push_back({tensors_[i].name, tensors_[i].bytes, base + sources_[i].file_offset});
  }
  PinningDevice device;
  LoadOptions with_pin = options();
  with_pin.pin = &device;
  const auto sums = digest_in_place(*pool, in_place, with_pin);
  ASSERT_TRUE(sums.is_ok()) << sums.status().to_string();
  for (std::size_t i = 0; i < in_place.size(); ++i) {
    EXPECT_EQ(sums->digest(i), digest(data_[2 + 3 * i])) << in_place[i].name;
  }
  EXPECT_EQ(device.pins.size(), pool->pieces().size() - 1);  // the anonymous piece holds nothing
}

TEST_F(LoadTest, PiecesArePinnedOnceWhenTheyAreFull) {
  const std::vector<std::byte> data = content(30 * kMiB, 5);
  const std::vector<PoolTensor> tensors = {{"a", 9 * kMiB, 0}, {"b", 21 * kMiB, 9 * kMiB}};
  const std::vector<const std::byte*> pointers = {data.data(), data.data() + 9 * kMiB};
  PinningDevice device;
  LoadOptions with_pin = options(4);
  with_pin.pin = &device;
  auto pool = *HostPool::create(30 * kMiB, {.piece_bytes = 4 * kMiB});
  ASSERT_TRUE(load_memory(*pool, tensors, pointers, with_pin).is_ok());
  ASSERT_EQ(device.pins.size(), 8u);
  for (const auto& pin : device.pins) EXPECT_TRUE(pin.full);
  EXPECT_EQ(device.live, 8);
  ASSERT_TRUE(load_memory(*pool, tensors, pointers, with_pin).is_ok());  // pinned already
  EXPECT_EQ(device.pins.size(), 8u);
  pool.reset();
  EXPECT_EQ(device.live, 0);
}

TEST_F(LoadTest, AFailedPinIsTheOutcome) {
  PinningDevice device;
  device.refuse_from = 1;
  LoadOptions with_pin = options();
  with_pin.pin = &device;
  auto pool = *HostPool::create(pool_bytes_, {.piece_bytes = 2 * kMiB});
  EXPECT_EQ(load_memory(*pool, tensors_, pointers_, with_pin).status().code(),
            StatusCode::kResourceExhausted);
  pool.reset();
  EXPECT_EQ(device.live, 0);
}

TEST_F(LoadTest, ATruncatedFileIsNamedWithTensorAndOffset) {
  constexpr std::size_t kTensor = 14;  // the last one of its file
  const FileSource& source = sources_[kTensor];
  fs::resize_file(source.path, source.file_offset + kMiB + 1);
  const auto pool = *HostPool::create(pool_bytes_);
  const Status status = load_files(*pool, tensors_, sources_, options()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  for (const std::string& part :
       {source.path, tensors_[kTensor].name, concat(source.file_offset + kMiB + 1)}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST_F(LoadTest, FilesThatCannotBeReadAreNamed) {
  const auto pool = *HostPool::create(pool_bytes_);
  sources_[3].path = folder_ / "none";
  const Status missing = load_files(*pool, tensors_, sources_, options()).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find(sources_[3].path), std::string::npos);
  sources_[3].path = folder_;
  EXPECT_EQ(load_files(*pool, tensors_, sources_, options()).status().code(), StatusCode::kIo);
}

TEST_F(LoadTest, ProgressGrowsToAllBytes) {
  const auto pool = *HostPool::create(pool_bytes_);
  std::vector<std::uint64_t> seen;
  LoadOptions watched = options();
  watched.progress = [&](std::uint64_t done) { seen.push_back(done); };
  ASSERT_TRUE(load_files(*pool, tensors_, sources_, watched).is_ok());
  ASSERT_GT(seen.size(), 1u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), total_);
}

TEST_F(LoadTest, AnAbortAndADeadlineEndItBetweenBlocks) {
  const auto pool = *HostPool::create(pool_bytes_);
  AbortSignal abort;
  std::atomic<std::uint64_t> last{0};
  LoadOptions aborted_early = options();
  aborted_early.abort = &abort;
  aborted_early.progress = [&](std::uint64_t done) {
    last = done;
    if (done > 2 * kMiB) abort.raise(aborted("rank 3 is gone"));
  };
  const Status status = load_files(*pool, tensors_, sources_, aborted_early).status();
  EXPECT_EQ(status.message(), "rank 3 is gone");
  EXPECT_LT(last, total_);
  EXPECT_EQ(load_memory(*pool, tensors_, pointers_, {.deadline = Deadline::after_seconds(0)})
                .status()
                .code(),
            StatusCode::kDeadlineExceeded);
}

TEST_F(LoadTest, AnAbortAndADeadlineEndACopyOutOfADevice) {
  const auto pool = *HostPool::create(pool_bytes_);
  DeviceOfPins device;
  AbortSignal abort;
  LoadOptions aborted_early = options();
  aborted_early.abort = &abort;
  std::uint64_t last = 0;
  aborted_early.progress = [&](std::uint64_t done) {
    last = done;
    if (done > 2 * kMiB) abort.raise(aborted("rank 3 is gone"));
  };
  const Status status = load_device(*pool, tensors_, pointers_, device, aborted_early).status();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("rank 3 is gone"));
  EXPECT_LT(last, total_);
  LoadOptions late = options();
  late.deadline = Deadline::after_seconds(0);
  EXPECT_EQ(load_device(*pool, tensors_, pointers_, device, late).status().code(),
            StatusCode::kDeadlineExceeded);
}

// The device pins a piece for as long as it takes; nobody waits for that.
TEST_F(LoadTest, AnAbortIsHeardWhileAPieceIsPinned) {
  const auto pool = *HostPool::create(pool_bytes_);
  DeviceOfPins device;
  AbortSignal abort;
  device.on_pin = [&] {
    abort.raise(aborted("rank 3 is gone"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  };
  LoadOptions waiting = options();
  waiting.abort = &abort;
  EXPECT_THAT(load_device(*pool, tensors_, pointers_, device, waiting).status().message(),
              ::testing::HasSubstr("rank 3 is gone"));
}

TEST_F(LoadTest, RefusesPlacesThatDoNotFit) {
  const auto pool = *HostPool::create(pool_bytes_);
  const auto code = [&] {
    return load_memory(*pool, tensors_, pointers_, options()).status().code();
  };
  tensors_[10].pool_offset -= 1;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  tensors_[10].pool_offset = pool_bytes_ - 1;
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
  pointers_.pop_back();
  EXPECT_EQ(code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckpt
