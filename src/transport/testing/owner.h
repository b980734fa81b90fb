// An owner of memory for tests: a transport of this process, or one in a process of its own that
// can be killed and stopped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace ckpt::testing {

/// Byte streams that are cheap to make and to check, different for every seed.
void fill_pattern(std::span<std::byte> memory, std::uint64_t seed);
/// The index of the first byte that is not the pattern's from `offset` on, or -1.
std::int64_t first_mismatch(std::span<const std::byte> memory, std::uint64_t seed,
                            std::uint64_t offset = 0);

/// All calls wait until the owner has done them.
class OwnerUnderTest {
 public:
  virtual ~OwnerUnderTest() = default;
  /// Registers fresh memory with pattern `seed`; ids count from 1.
  virtual void add_region(std::uint64_t bytes, std::uint64_t seed) = 0;
  /// Closes region `id`, then overwrites its memory with 0xff.
  virtual void close_region(std::uint64_t id) = 0;
  virtual std::vector<std::byte> descriptor() = 0;
  /// Signals so far, as "label:bytes:digest" lines in order of arrival, once `count` have come.
  virtual std::vector<std::string> signals(std::size_t count) = 0;
  /// Reads region `region` with pattern 1 of another owner again and again, until an error; returns
  /// after the first time.
  virtual void read_for_ever(const std::vector<std::byte>& descriptor, std::uint64_t region) = 0;
  /// Reads that succeeded with wrong bytes, once reading has ended (or 2 s have passed).
  virtual std::uint64_t mismatches() = 0;
  virtual void kill() = 0;
  virtual void stop() = 0;
  virtual void resume() = 0;
};

std::string describe_signal(std::string_view label, std::span<const std::byte> message);

/// Damage of an owner that lives in this process; may be empty where there is none.
struct Damage {
  std::function<void()> kill, stop, resume;
};
std::unique_ptr<OwnerUnderTest> make_local_owner(std::shared_ptr<Transport> transport,
                                                 Damage damage);

/// Starts this program anew as an owner; `backend` is handed to run_owner_process there.
std::unique_ptr<OwnerUnderTest> start_owner_process(
    const std::string& backend, const std::vector<std::pair<std::string, std::string>>& env = {});
/// For main: the backend of start_owner_process, or "" in the test itself.
std::string owner_process_backend(int argc, char** argv);
/// Serves commands on stdin until it ends.
int run_owner_process(std::shared_ptr<Transport> transport);

}  // namespace ckpt::testing
