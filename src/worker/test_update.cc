#include "worker/test_update.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "base/host.h"
#include "base/strings.h"
#include "checkpoint/digest.h"
#include "worker/test_stock_worker.h"

namespace ckpt::test {
namespace {

std::unique_ptr<TensorInfo> test_tensor(int index) {
  static const std::vector<std::vector<std::int64_t>> kShapes = {
      {3, 5}, {}, {1000, 321}, {0, 7}, {4096, 512}};
  auto shape = kShapes[static_cast<std::size_t>(index) % kShapes.size()];
  auto info = make_tensor_info(concat("layers.", index, ".weight"),
                               index % 2 == 0 ? DType::kBF16 : DType::kU8, std::move(shape));
  return std::make_unique<TensorInfo>(*std::move(info));
}

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

[[noreturn]] void leave(int code) { ::_exit(code); }

}  // namespace

std::string unique_job() { return "test-" + random_id(); }

Ring::Ring(const std::string& job, int tensors) {
  std::uint64_t offset = 0;
  for (int i = 0; i < tensors; ++i) {
    infos_.push_back(test_tensor(i));
    entries_.push_back({infos_.back().get(), offset, 0, infos_.back()->bytes, 0});
    offset += round_up(infos_.back()->bytes);
  }
  auto memory =
      SharedMemory::create("checkpoint-engine-" + job, std::max<std::uint64_t>(offset, 1));
  memory_ = std::move(memory).value();
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    for (std::byte& byte : content(i)) byte = static_cast<std::byte>(random());
    entries_[i].digest = digest(content(i));
  }
}

Ring::~Ring() { SharedMemory::unlink(memory_.name()); }

BufferHandle Ring::handle() const {
  BufferHandle handle;
  handle.bytes = memory_.size();
  handle.shared_memory = memory_.name();
  return handle;
}

std::span<std::byte> Ring::content(std::size_t tensor) {
  return memory_.bytes().subspan(entries_[tensor].ring_offset, entries_[tensor].bytes);
}

std::uint64_t Ring::total_bytes() const {
  std::uint64_t sum = 0;
  for (const RingEntry& entry : entries_) sum += entry.bytes;
  return sum;
}

ChannelOptions channel_options(const std::string& job, const Ring& ring) {
  ChannelOptions options;
  options.job = job;
  options.rank = 3;
  options.epoch = 7;
  options.total_tensors = ring.size();
  options.total_bytes = ring.total_bytes();
  return options;
}

std::unique_ptr<WorkerChannel> bind(const ChannelOptions& options) {
  auto channel = WorkerChannel::bind(options);
  EXPECT_TRUE(channel.is_ok()) << channel.status().to_string();
  return std::move(channel).value();
}

Result<Pass> run_pass(WorkerChannel& channel, const Ring& ring, AbortSignal& abort) {
  Pass pass;
  CKPT_ASSIGN_OR_RETURN(pass.hello, channel.accept(soon(), abort));
  CKPT_RETURN_IF_ERROR(channel.open_ring(ring.handle(), soon(), abort));
  int unacknowledged = 0;
  std::uint32_t next_ack = 0;
  const auto take_ack = [&]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const BucketAck ack, channel.wait_ack(soon(), abort));
    EXPECT_EQ(ack.bucket, next_ack++);
    pass.sum.tensors += ack.tensors;
    pass.sum.bytes += ack.bytes;
    pass.sum.verified_tensors += ack.verified_tensors;
    --unacknowledged;
    return Status::ok();
  };
  std::uint32_t bucket = 0;
  for (std::size_t begin = 0; begin < ring.size(); begin += 2) {
    if (unacknowledged == channel.window()) CKPT_RETURN_IF_ERROR(take_ack());
    CKPT_RETURN_IF_ERROR(
        channel.announce(bucket++, ring.entries(begin, std::min(begin + 2, ring.size()))));
    ++unacknowledged;
  }
  while (unacknowledged > 0) CKPT_RETURN_IF_ERROR(take_ack());
  CKPT_RETURN_IF_ERROR(channel.release(soon(), abort));
  CKPT_RETURN_IF_ERROR(channel.finish(soon(), abort));
  return pass;
}

Result<std::span<std::byte>> TestLoader::destination(const TensorInfo& tensor) {
  if (before) CKPT_RETURN_IF_ERROR(before(tensor));
  auto& memory = held[tensor.name];
  if (by_load.contains(tensor.name)) return std::span<std::byte>();
  memory.resize(tensor.bytes);
  return std::span(memory);
}

Status TestLoader::load(std::span<const TensorView> tensors) {
  for (const TensorView& view : tensors) {
    EXPECT_TRUE(by_load.contains(view.info->name)) << view.info->name;
    held[view.info->name].assign(view.data, view.data + view.info->bytes);
  }
  return Status::ok();
}

Status TestLoader::finish() {
  finished = true;
  return at_finish;
}

bool TestLoader::holds(Ring& ring) const {
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto found = held.find(ring.entries()[i].info->name);
    if (found == held.end()) return false;
    const auto content = ring.content(i);
    if (!std::equal(content.begin(), content.end(), found->second.begin(), found->second.end())) {
      return false;
    }
  }
  return true;
}

Received receive_in_thread(const std::string& address, Loader& loader, ReceiverOptions options) {
  return std::async(std::launch::async, [address, &loader, options] {
    return update_weights(address, loader, options);
  });
}

RoleProcess::RoleProcess(const std::string& role, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"/proc/self/exe", "--role", role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  output_.reset(ends[0]);
  const UniqueFd input(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(input.get(), STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    leave(127);
  }
}

RoleProcess::~RoleProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void RoleProcess::signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }

void RoleProcess::wait_until_stopped() const {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status));
}

int RoleProcess::wait() {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::string RoleProcess::read_line() {
  std::string line;
  char c;
  while (::read(output_.get(), &c, 1) == 1 && c != '\n') line.push_back(c);
  return line;
}

namespace {

void write_line(std::string line) {
  line.push_back('\n');
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, line.data(), line.size());
}

/// worker ADDRESS VERB: receives one update. At the second tensor: "die", "stop", or neither.
int worker_role(const std::string& address, const std::string& verb) {
  TestLoader loader;
  int seen = 0;
  loader.before = [&](const TensorInfo&) {
    if (++seen == 2 && verb == "die") ::raise(SIGKILL);
    if (seen == 2 && verb == "stop") ::raise(SIGSTOP);
    return Status::ok();
  };
  const auto report = update_weights(address, loader);
  write_line(report.status().to_string());
  return report.is_ok() ? 0 : 1;
}

/// stock-worker ADDRESS VERB: the Python package's worker. At the second bucket: "die" or "stop".
/// Writes how it ended: "returned", "raised" what its rank sent, or "left".
int stock_worker_role(const std::string& address, const std::string& verb) {
  StockScript script;
  script.at = Step::kBucket;
  script.bucket = 2;
  script.before = [&] { ::raise(verb == "die" ? SIGKILL : SIGSTOP); };
  const std::atomic<bool> stop = false;
  const StockOutcome outcome = run_stock_worker(address, script, stop);
  write_line(outcome.returned ? "returned" : outcome.raised.empty() ? "left" : "raised");
  return outcome.returned ? 0 : 1;
}

/// rank JOB VERB: writes its address, then updates one worker. With a bucket announced: "die",
/// "stop", or neither.
int rank_role(const std::string& job, const std::string& verb) {
  const Ring ring(job);
  AbortSignal abort;
  const auto channel = bind(channel_options(job, ring));
  write_line(channel->address());
  if (verb == "load") return run_pass(*channel, ring, abort).is_ok() ? 0 : 1;
  if (!channel->accept(soon(), abort).is_ok()) return 2;
  if (!channel->open_ring(ring.handle(), soon(), abort).is_ok()) return 3;
  if (!channel->announce(0, ring.entries(0, 2)).is_ok()) return 4;
  SharedMemory::unlink(ring.handle().shared_memory);
  write_line("announced");
  ::raise(verb == "die" ? SIGKILL : SIGSTOP);
  return 0;
}

}  // namespace

int run_role(int argc, char** argv) {
  if (argc != 5 || std::string_view(argv[1]) != "--role") return -1;
  const std::string_view role = argv[2];
  if (role == "worker") return worker_role(argv[3], argv[4]);
  if (role == "stock-worker") return stock_worker_role(argv[3], argv[4]);
  if (role == "rank") return rank_role(argv[3], argv[4]);
  return 126;
}

}  // namespace ckpt::test
