#include "transport/testing/owner.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "base/strings.h"
#include "transport/testing/hex.h"

extern char** environ;

namespace ckpt::testing {
namespace {

constexpr char kFlag[] = "--transport-owner=";

std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + index;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 27);
}

std::byte pattern_byte(std::uint64_t seed, std::uint64_t at) {
  return static_cast<std::byte>(pattern_word(seed, at / 8) >> (at % 8 * 8));
}

class LocalOwner final : public OwnerUnderTest {
 public:
  LocalOwner(std::shared_ptr<Transport> transport, Damage damage)
      : transport_(std::move(transport)), damage_(std::move(damage)) {
    transport_->set_signal_handler(
        [this](const Transport::Sender& sender, std::span<const std::byte> message) {
          const std::lock_guard lock(mutex_);
          signals_.push_back(describe_signal(sender.label, message));
          arrived_.notify_all();
        });
  }
  ~LocalOwner() override {
    stop_reading_.store(true);
    if (reading_.joinable()) reading_.join();
    transport_->set_signal_handler({});
    regions_.clear();
  }

  void add_region(std::uint64_t bytes, std::uint64_t seed) override {
    Region region;
    region.memory.resize(bytes);
    fill_pattern(region.memory, seed);
    auto handle = transport_->register_memory(region.memory.data(), bytes);
    if (!handle.is_ok()) std::abort();
    region.handle = std::move(handle).value();
    const std::uint64_t id = region.handle->id();
    regions_.emplace(id, std::move(region));
  }
  void close_region(std::uint64_t id) override {
    Region& region = regions_.at(id);
    region.handle->close(Deadline::after_seconds(10));
    std::memset(region.memory.data(), 0xff, region.memory.size());
  }
  std::vector<std::byte> descriptor() override {
    auto bytes = transport_->descriptor();
    return bytes.is_ok() ? std::move(bytes).value() : std::vector<std::byte>();
  }
  std::vector<std::string> signals(std::size_t count) override {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(20), [&] { return signals_.size() >= count; });
    return signals_;
  }
  void read_for_ever(const std::vector<std::byte>& descriptor, std::uint64_t region) override {
    reading_ = std::thread([this, descriptor, region] { read_until_error(descriptor, region); });
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(20), [&] { return reads_ > 0 || read_ended_; });
  }
  std::uint64_t mismatches() override {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, std::chrono::seconds(2), [&] { return read_ended_; });
    return mismatches_;
  }
  void kill() override { damage_.kill(); }
  void stop() override { damage_.stop(); }
  void resume() override { damage_.resume(); }

 private:
  struct Region {
    std::vector<std::byte> memory;
    std::unique_ptr<MemoryRegion> handle;  // goes before the memory
  };

  void read_until_error(const std::vector<std::byte>& descriptor, std::uint64_t region) {
    const Deadline deadline = Deadline::after_seconds(30);
    const auto peer = transport_->connect(descriptor, {}, deadline);
    bool good = peer.is_ok();
    while (good && !stop_reading_.load()) {
      std::vector<std::byte> memory((*peer)->regions()[0].bytes);
      const ReadRange range{region, 0, memory.data(), memory.size()};
      good = transport_->read(**peer, {&range, 1}, deadline)->wait(deadline).is_ok();
      const bool wrong = good && first_mismatch(memory, 1) != -1;
      const std::lock_guard lock(mutex_);
      ++reads_;
      if (wrong) ++mismatches_;
      arrived_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    read_ended_ = true;
    arrived_.notify_all();
  }

  const std::shared_ptr<Transport> transport_;
  const Damage damage_;
  std::map<std::uint64_t, Region> regions_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::string> signals_;
  std::uint64_t reads_ = 0, mismatches_ = 0;  // guarded by mutex_
  bool read_ended_ = false;                   // guarded by mutex_
  std::atomic<bool> stop_reading_{false};
  std::thread reading_;
};

class ProcessOwner final : public OwnerUnderTest {
 public:
  ProcessOwner(pid_t pid, UniqueFd commands, UniqueFd answers)
      : pid_(pid),
        commands_(fdopen(commands.release(), "w")),
        answers_(fdopen(answers.release(), "r")) {}
  ~ProcessOwner() override {
    if (pid_ > 0) {
      ::kill(pid_, SIGCONT);
      std::fclose(commands_);
      ::waitpid(pid_, nullptr, 0);
    } else {
      std::fclose(commands_);
    }
    std::fclose(answers_);
  }

  void add_region(std::uint64_t bytes, std::uint64_t seed) override {
    ask(concat("region ", bytes, " ", seed));
  }
  void close_region(std::uint64_t id) override { ask(concat("close ", id)); }
  std::vector<std::byte> descriptor() override { return from_hex(ask("descriptor")); }
  std::vector<std::string> signals(std::size_t count) override {
    const std::string answer = ask(concat("signals ", count));
    return answer.empty() ? std::vector<std::string>() : split(answer, ',');
  }
  void read_for_ever(const std::vector<std::byte>& descriptor, std::uint64_t region) override {
    ask(concat("read ", to_hex(descriptor), " ", region));
  }
  std::uint64_t mismatches() override {
    return static_cast<std::uint64_t>(std::strtoull(ask("mismatches").c_str(), nullptr, 10));
  }
  void kill() override {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void stop() override {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void resume() override { ::kill(pid_, SIGCONT); }

 private:
  std::string ask(const std::string& command) {
    std::fputs((command + "\n").c_str(), commands_);
    std::fflush(commands_);
    char* line = nullptr;
    std::size_t capacity = 0;
    const ssize_t length = ::getline(&line, &capacity, answers_);
    std::string answer(line, length > 0 ? static_cast<std::size_t>(length) - 1 : 0);
    std::free(line);
    return answer;
  }

  pid_t pid_;
  FILE* const commands_;
  FILE* const answers_;
};

}  // namespace

void fill_pattern(std::span<std::byte> memory, std::uint64_t seed) {
  std::size_t at = 0;
  for (; at + 8 <= memory.size(); at += 8) {
    const std::uint64_t word = pattern_word(seed, at / 8);
    std::memcpy(memory.data() + at, &word, 8);
  }
  for (; at < memory.size(); ++at) memory[at] = pattern_byte(seed, at);
}

std::int64_t first_mismatch(std::span<const std::byte> memory, std::uint64_t seed,
                            std::uint64_t offset) {
  std::size_t at = 0;
  while (at < memory.size()) {
    const std::uint64_t position = offset + at;
    if (position % 8 == 0 && at + 8 <= memory.size()) {
      const std::uint64_t word = pattern_word(seed, position / 8);
      if (std::memcmp(memory.data() + at, &word, 8) == 0) {
        at += 8;
        continue;
      }
    }
    if (memory[at] != pattern_byte(seed, position)) return static_cast<std::int64_t>(at);
    ++at;
  }
  return -1;
}

std::string describe_signal(std::string_view label, std::span<const std::byte> message) {
  std::uint64_t digest = 0;
  for (const std::byte byte : message) digest = digest * 31 + static_cast<std::uint64_t>(byte);
  return concat(label, ":", message.size(), ":", digest);
}

std::unique_ptr<OwnerUnderTest> make_local_owner(std::shared_ptr<Transport> transport,
                                                 Damage damage) {
  return std::make_unique<LocalOwner>(std::move(transport), std::move(damage));
}

std::unique_ptr<OwnerUnderTest> start_owner_process(
    const std::string& backend, const std::vector<std::pair<std::string, std::string>>& env) {
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], 0);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], 1);
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  for (const auto& [name, value] : env) variables.push_back(concat(name, "=", value));
  std::vector<char*> envp;
  for (std::string& variable : variables) envp.push_back(variable.data());
  envp.push_back(nullptr);
  char program[] = "/proc/self/exe";
  std::string flag = concat(kFlag, backend);
  char* argv[] = {program, flag.data(), nullptr};
  pid_t pid = -1;
  if (::posix_spawn(&pid, program, &actions, nullptr, argv, envp.data()) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  return std::make_unique<ProcessOwner>(pid, UniqueFd(to_child[1]), UniqueFd(from_child[0]));
}

std::string owner_process_backend(int argc, char** argv) {
  if (argc != 2 || std::strncmp(argv[1], kFlag, sizeof(kFlag) - 1) != 0) return "";
  return argv[1] + sizeof(kFlag) - 1;
}

int run_owner_process(std::shared_ptr<Transport> transport) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto owner = make_local_owner(std::move(transport), {});
  char* line = nullptr;
  std::size_t capacity = 0;
  while (::getline(&line, &capacity, stdin) > 0) {
    const std::vector<std::string> words = split(trim(line), ' ');
    const auto number = [&](std::size_t i) {
      return static_cast<std::uint64_t>(std::strtoull(words.at(i).c_str(), nullptr, 10));
    };
    std::string answer;
    if (words[0] == "region") owner->add_region(number(1), number(2));
    if (words[0] == "close") owner->close_region(number(1));
    if (words[0] == "read") owner->read_for_ever(from_hex(words.at(1)), number(2));
    if (words[0] == "mismatches") answer = concat(owner->mismatches());
    if (words[0] == "descriptor") answer = to_hex(owner->descriptor());
    if (words[0] == "signals") answer = join(owner->signals(number(1)), ",");
    std::fputs((answer + "\n").c_str(), stdout);
    std::fflush(stdout);
  }
  std::free(line);
  return 0;
}

}  // namespace ckpt::testing
